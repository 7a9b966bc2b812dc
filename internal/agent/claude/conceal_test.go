package claude

import "testing"

func TestAnswersThatHoldTokensAreConcealed(t *testing.T) {
	d := &dialogue{}
	for line, want := range map[string]bool{
		`{"type":"control_response","response":{"subtype":"success","request_id":"np-status-1","response":{"mcpServers":[{"name":"x","config":{"headers":{"Authorization":"Bearer t"}}}]}}}`: true,
		`{"response":{},"type":"control_response"}`:                                         true,
		`{"type":"control_response","respon`:                                                true,
		`{"type":"assistant","message":{"content":[{"text":"what is control_response?"}]}}`: false,
		`{"type":"system","subtype":"init"}`:                                                false,
		`Bearer t`:                                                                          false,
	} {
		if got := d.Conceal([]byte(line)); got != want {
			t.Errorf("Conceal(%.60s) = %t, want %t", line, got, want)
		}
	}
}
