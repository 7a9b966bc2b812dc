// Package matrix runs the real MCP clients and servers with Nightporter between them, and keeps what was measured as pages of the
// documentation: docs/clients.md and docs/servers.md.
//
// The tests fail when a page says something else than they measured. Write the pages anew with
//
//	NIGHTPORTER_MATRIX_WRITE=1 go test ./test/matrix
package matrix
