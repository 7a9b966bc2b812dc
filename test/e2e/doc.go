// Package e2e tests the built program with real agents and real MCP servers. Only the model is fake.
package e2e
