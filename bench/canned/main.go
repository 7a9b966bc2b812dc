// Command canned is the least that an MCP server can be: it answers tools/list with a file's content. It is what the time to a list
// of tools is held against.
//
//	canned FILE           on standard input and output
//	canned FILE ADDRESS   on streamable HTTP
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

func main() {
	tools, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	tools = bytes.TrimSpace(tools)
	if len(os.Args) > 2 {
		log.Fatal(http.ListenAndServe(os.Args[2], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Mcp-Session-Id", "canned")
			if answer := answer(body, tools); answer != nil {
				w.Write(answer)
				return
			}
			w.WriteHeader(http.StatusAccepted)
		})))
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		if answer := answer(line, tools); answer != nil {
			os.Stdout.Write(append(answer, '\n'))
		}
	}
}

func answer(frame, tools []byte) []byte {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	if json.Unmarshal(frame, &m) != nil || m.ID == nil {
		return nil
	}
	result := tools
	if m.Method == "initialize" {
		result = []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"canned","version":"1"}}`)
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}
