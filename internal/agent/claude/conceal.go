package claude

import (
	"bytes"

	"nightporter/internal/agent"
)

var _ agent.Concealer = (*dialogue)(nil)

// Conceal implements [agent.Concealer]: answers to control requests are kept in no transcript. That to mcp_status
// holds the configuration of every server that is reached, HTTP headers in clear included (§3.3), and when the
// boundary does not hold these are servers whose tokens nobody here knows.
func (d *dialogue) Conceal(line []byte) bool {
	// Nearly every line is no answer, and is not parsed for it. The name cannot be spelled otherwise than
	// by escapes, which Claude Code does not use for letters; a line that is no JSON is concealed to be safe.
	if !bytes.Contains(line, []byte("control_response")) {
		return false
	}
	var h header
	return !decode(line, &h) || h.Type == "control_response"
}
