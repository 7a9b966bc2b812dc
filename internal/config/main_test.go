package config

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain makes the test's own program the program of ${cmd:…}: what it does then is in CONFIG_TEST_DOES.
func TestMain(m *testing.M) {
	switch does, address, _ := strings.Cut(os.Getenv("CONFIG_TEST_DOES"), " "); does {
	case "":
		os.Exit(m.Run())
	case "print":
		fmt.Println(strings.Join(os.Args[1:], "|"))
	case "cry":
		fmt.Println("half-a-secret")
		fmt.Fprintln(os.Stderr, "first line\nnot signed in")
		os.Exit(3)
	case "flood":
		fmt.Print(strings.Repeat("x", maxSecret+1))
	case "hang":
		// A child of its own that holds on too; both say that they run, and live as long as they are let.
		if len(os.Args) == 1 {
			child := exec.Command(os.Args[0], "child")
			if err := child.Start(); err != nil {
				os.Exit(4)
			}
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			os.Exit(5)
		}
		fmt.Fprint(conn, ".")
		io.Copy(io.Discard, conn)
	}
}
