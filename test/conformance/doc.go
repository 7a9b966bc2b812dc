// Package conformance runs the official MCP conformance suite against the gateway,
// with go-sdk's everything-server behind it, and against everything-server
// itself, so that the two results can be compared.
//
// The suite calls tools, prompts and resources by fixed names, so only a server
// that has them can be judged (facts/mcp.md section 2).
package conformance
