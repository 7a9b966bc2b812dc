//go:build unix

package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The owner and the guard talk over a socket pair. The owner sends one spec and then
// commands of one byte; the guard answers with reports of five bytes. The spec goes this way, not by argv
// or environment, because it holds secrets and arbitrary bytes.

// spec is what the guard is to start.
type spec struct {
	Path, Dir string
	Args, Env []string // Args without argv[0]; Env complete
}

// maxSpec is above what a kernel takes as arguments and environment (6 MiB on Linux).
const maxSpec = 16 << 20

// Commands of the owner.
const (
	interruptProgram byte = 'i'
	terminateTree    byte = 't'
	killTree         byte = 'k'
)

// Kinds of reports of the guard, with what their value is.
const (
	programStarted byte = 's' // its pid
	startFailed    byte = 'e' // the errno
	programEnded   byte = 'x' // its wait status
)

// encode returns the spec's length, 4 bytes, and the spec: the number of arguments, then every string with its length.
func (s spec) encode() ([]byte, error) {
	b := make([]byte, 4, 4096)
	b = binary.AppendUvarint(b, uint64(len(s.Args)))
	for _, list := range [][]string{{s.Path, s.Dir}, s.Args, s.Env} {
		for _, v := range list {
			b = binary.AppendUvarint(b, uint64(len(v)))
			b = append(b, v...)
		}
	}
	if len(b)-4 > maxSpec {
		return nil, fmt.Errorf("arguments and environment are %d bytes; at most %d can be passed", len(b), maxSpec)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b, nil
}

// readSpec reads what encode wrote.
func readSpec(r io.Reader) (spec, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return spec{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxSpec {
		return spec{}, fmt.Errorf("spec of %d bytes; at most %d are taken", n, maxSpec)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return spec{}, err
	}
	return decodeSpec(body)
}

var errSpec = errors.New("malformed spec")

func decodeSpec(b []byte) (spec, error) {
	args, k := binary.Uvarint(b)
	if k <= 0 || args > uint64(len(b)) {
		return spec{}, errSpec
	}
	b = b[k:]
	var all []string
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return spec{}, errSpec
		}
		all = append(all, string(b[k:k+int(n)]))
		b = b[k+int(n):]
	}
	if uint64(len(all)) < 2+args {
		return spec{}, errSpec
	}
	return spec{Path: all[0], Dir: all[1], Args: all[2 : 2+args], Env: all[2+args:]}, nil
}

// report is one report of the guard.
type report struct {
	kind  byte
	value uint32
}

func (r report) encode() []byte {
	return binary.BigEndian.AppendUint32([]byte{r.kind}, r.value)
}

func readReport(r io.Reader) (report, error) {
	var b [5]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return report{}, err
	}
	return report{b[0], binary.BigEndian.Uint32(b[1:])}, nil
}
