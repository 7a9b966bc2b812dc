package fakemodel

import "fmt"

// The keys and the model that the agents are given. They are made up; a test
// may look for the keys wherever a secret must not show up.
const (
	ClaudeKey  = "made-up-key-for-the-fake-anthropic-api"
	CodexKey   = "made-up-key-for-the-fake-openai-api"
	CodexModel = "fake-1" // unknown to Codex: it is then sent every MCP tool (facts/codex.md section 6)

	codexKeyVar = "FAKE_KEY"
)

// ClaudeEnv is the environment that makes Claude Code ask this server.
// Claude Code retries a failing API ten times, which takes three minutes
// (facts/claude.md 1.4); tests of errors add CLAUDE_CODE_MAX_RETRIES=0.
func (s *Server) ClaudeEnv() []string {
	return []string{"ANTHROPIC_BASE_URL=" + s.URL, "ANTHROPIC_API_KEY=" + ClaudeKey}
}

// CodexEnv is the environment that CodexConfig needs: the key.
// CODEX_HOME, the folder with the config.toml, is the caller's to set.
func (s *Server) CodexEnv() []string { return []string{codexKeyVar + "=" + CodexKey} }

// CodexConfig is a config.toml that makes Codex ask this server, without
// retries and without telemetry, which leaves loopback. It holds top-level keys and ends with a table: other tables may follow.
func (s *Server) CodexConfig() string {
	return fmt.Sprintf(`model = %q
model_provider = "fake"

[model_providers.fake]
name = "Fake"
base_url = %q
wire_api = "responses"
env_key = %q
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
`, CodexModel, s.URL+"/v1", codexKeyVar)
}
