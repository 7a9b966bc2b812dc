// Command lab is the scripted MCP server of package lab.
package main

import "nightporter/test/lab"

func main() { lab.Main() }
