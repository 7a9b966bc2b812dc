//go:build unix

package server

import (
	"cmp"
	"io"
	"runtime"
	"syscall"
)

// maxDirect is the longest line that is written so: PIPE_BUF, of which a pipe takes all or nothing. It is 512 on any Unix.
var maxDirect = cmp.Or(map[string]int{"linux": 4096}[runtime.GOOS], 512)

// direct writes to a pipe without waiting.
type direct struct{ conn syscall.RawConn }

// directly is for a pipe that is in non-blocking mode, as os.Pipe makes them.
func directly(w io.Writer) direct {
	if file, ok := w.(syscall.Conn); ok {
		if conn, err := file.SyscallConn(); err == nil {
			return direct{conn}
		}
	}
	return direct{}
}

// write writes the whole line, or nothing and reports false.
func (d direct) write(line []byte) (written bool) {
	if d.conn == nil || len(line) > maxDirect {
		return false
	}
	_ = d.conn.Write(func(fd uintptr) bool {
		n, err := syscall.Write(int(fd), line)
		written = err == nil && n == len(line)
		return true // not to be waited for
	})
	return written
}
