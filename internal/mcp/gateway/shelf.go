package gateway

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"nightporter/internal/mcp/wire"
)

// Bounds of what is kept aside. Neither one client nor the holder of one token, who may have many clients, may push out everything that
// others have: their own oldest go first.
const (
	maxKeptBy         = 64 // results of one client or run
	maxKeptBytesBy    = 256 << 20
	maxKeptHolder     = 128 // of one holder
	maxKeptHolderSize = 512 << 20
	maxKeptAll        = 512 // of the process; each holds a file open
	maxKeptAllSize    = 2 << 30
	// maxParts bounds the parts of a result that have a name of their own; all is in the whole.
	maxParts = 1000
)

type kind int

const (
	kindText kind = iota
	kindBlob
)

// wholeName is the name of the part that is the result as its server sent it.
const wholeName = "."

// span is a range of bytes of a file.
type span struct{ from, to int64 }

func (s span) size() int64 { return s.to - s.from }

// part is a piece of a result that can be read by itself.
type part struct {
	name  string
	kind  kind
	mime  string
	span       // of its text or bytes, decoded
	block span // of the element of the result that it is in, as the server sent it
}

// keptResult is a result that was kept aside, in a file that has no name any more: nobody else can open it, and it is gone with the process
// however that ends. Where a file that is open cannot be removed, it is when it is closed.
type keptResult struct {
	id, method string
	parts      []part // the whole first
	size       int64  // of the file
	file       *os.File
	left       string // the file's name, where it could not be removed
	on         *shelf
}

func (k *keptResult) close() {
	k.file.Close()
	if k.left != "" {
		os.Remove(k.left)
	}
}

func (k *keptResult) bytes(s span) ([]byte, error) {
	data := make([]byte, s.size())
	if _, err := k.file.ReadAt(data, s.from); err != nil && !(errors.Is(err, io.EOF) && len(data) == 0) {
		if errors.Is(err, os.ErrClosed) {
			return nil, errNotKept
		}
		return nil, fmt.Errorf("read a result that was kept aside: %w", err)
	}
	return data, nil
}

// room is what all shelves of the process hold, oldest first.
type room struct {
	mu  sync.Mutex
	all []*keptResult
}

var everybodys room

// shelf is the results that are kept for one client, or for one run.
type shelf struct {
	holder any  // the same for all clients of one token; nil: nobody else's
	closed bool // under everybodys.mu
}

func (s *shelf) find(id string) *keptResult {
	everybodys.mu.Lock()
	defer everybodys.mu.Unlock()
	for _, k := range everybodys.all {
		if k.on == s && k.id == id {
			return k
		}
	}
	return nil
}

func (s *shelf) close() {
	everybodys.mu.Lock()
	defer everybodys.mu.Unlock()
	s.closed = true
	everybodys.drop(func(k *keptResult) bool { return k.on == s })
}

// drop closes those that fit. The caller holds r.mu.
func (r *room) drop(fits func(*keptResult) bool) {
	r.all = slices.DeleteFunc(r.all, func(k *keptResult) bool {
		if fits(k) {
			k.close()
			return true
		}
		return false
	})
}

// fit makes room for k: first among those of its own shelf, then of its holder's. The caller holds r.mu.
func (r *room) fit(k *keptResult) {
	mine := func(other *keptResult) bool { return other.on == k.on }
	holders := func(other *keptResult) bool {
		return mine(other) || k.on.holder != nil && other.on.holder == k.on.holder
	}
	for _, bound := range []struct {
		of   func(*keptResult) bool
		n    int
		size int64
	}{{mine, maxKeptBy, maxKeptBytesBy}, {holders, maxKeptHolder, maxKeptHolderSize}, {func(*keptResult) bool { return true }, maxKeptAll, maxKeptAllSize}} {
		n, size := 1, k.size
		for _, other := range r.all {
			if bound.of(other) {
				n++
				size += other.size
			}
		}
		r.drop(func(other *keptResult) bool {
			if !bound.of(other) || n <= bound.n && size <= bound.size {
				return false
			}
			n--
			size -= other.size
			return true
		})
	}
}

// put keeps a result of a method aside. What is written is read from the result itself, so that no second copy of it is made.
func (s *shelf) put(result json.RawMessage, method string) (*keptResult, error) {
	file, err := os.CreateTemp("", "nightporter-result-*") // with mode 0600
	if err != nil {
		return nil, err
	}
	k := &keptResult{id: newID(), method: method, file: file, on: s}
	if os.Remove(file.Name()) != nil {
		k.left = file.Name()
	}
	if err := k.write(result); err != nil {
		k.close()
		return nil, err
	}
	everybodys.mu.Lock()
	defer everybodys.mu.Unlock()
	if s.closed {
		k.close()
		return nil, errClosing
	}
	everybodys.fit(k)
	everybodys.all = append(everybodys.all, k)
	return k, nil
}

// write writes the whole, and behind it the parts, decoded.
func (k *keptResult) write(result json.RawMessage) error {
	members, err := wire.Members(result)
	if err != nil {
		return errors.New("it is not an object")
	}
	w := bufio.NewWriterSize(k.file, 64<<10)
	if _, err := w.Write(result); err != nil {
		return err
	}
	k.size = int64(len(result))
	k.parts = []part{{name: wholeName, mime: "application/json", span: span{0, k.size}}}
	searched := 0 // up to where blocks have been found in the result
	add := func(name string, block json.RawMessage) error {
		if len(k.parts) > maxParts {
			return nil
		}
		p := part{name: name, mime: "application/json"}
		if at := bytes.Index(result[searched:], block); at >= 0 {
			p.block = span{int64(searched + at), int64(searched + at + len(block))}
			searched += at + len(block)
		}
		value, holds, mime := payload(block)
		p.span = p.block
		if value != nil {
			n, err := writeDecoded(w, value, holds)
			switch {
			case err == nil:
				p.kind, p.mime, p.span = holds, mime, span{k.size, k.size + n}
			case !errors.Is(err, errNotBase64):
				return err
			}
			k.size += n
		}
		k.parts = append(k.parts, p)
		return nil
	}
	for _, m := range members {
		searched = 0
		switch m.Key {
		case "content", "contents", "messages":
			blocks, err := wire.Elements(m.Value)
			if err != nil {
				continue
			}
			for i, block := range blocks {
				if err := add(m.Key+"/"+strconv.Itoa(i), block); err != nil {
					return err
				}
			}
		case "structuredContent":
			if err := add(m.Key, m.Value); err != nil {
				return err
			}
		}
	}
	return w.Flush()
}

// payload is what a block of content carries: its text, or its bytes in base64, as a JSON string. It is nil for a block of any other kind.
func payload(block json.RawMessage) (value json.RawMessage, k kind, mime string) {
	for range 3 { // a message's content, the resource in that
		members, _ := wire.Members(block)
		block = nil
		for _, m := range members {
			isText := len(m.Value) > 1 && m.Value[0] == '"'
			switch {
			case m.Key == "mimeType":
				mime, _ = wire.Text(m.Value)
			case m.Key == "text" && isText:
				value, k = m.Value, kindText
			case (m.Key == "data" || m.Key == "blob") && isText && value == nil:
				value, k = m.Value, kindBlob
			case m.Key == "resource" || m.Key == "content" && block == nil:
				block = m.Value
			}
		}
		if value != nil {
			if mime == "" {
				mime = map[kind]string{kindText: "text/plain", kindBlob: "application/octet-stream"}[k]
			}
			return value, k, mime
		}
		mime = ""
	}
	return nil, kindText, ""
}

var errNotBase64 = errors.New("not base64")

// writeDecoded writes what a JSON string says, and returns how many bytes that were.
func writeDecoded(w io.Writer, quoted json.RawMessage, k kind) (int64, error) {
	text := &unquoter{rest: quoted[1 : len(quoted)-1]}
	if k == kindText {
		return io.Copy(w, text)
	}
	n, err := io.Copy(w, base64.NewDecoder(base64.StdEncoding, text))
	var corrupt base64.CorruptInputError
	if errors.As(err, &corrupt) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errNotBase64
	}
	return n, err
}

// unquoter reads what the inside of a valid JSON string says. Bytes that are not valid UTF-8 pass: whoever encodes them again replaces them.
type unquoter struct {
	rest []byte // what is not read yet
	char []byte // the rest of a character that did not fit, in room
	room [utf8.UTFMax]byte
}

func (u *unquoter) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(u.char) > 0 {
			m := copy(p[n:], u.char)
			u.char, n = u.char[m:], n+m
			continue
		}
		if len(u.rest) == 0 {
			break
		}
		plain := bytes.IndexByte(u.rest, '\\')
		if plain < 0 {
			plain = len(u.rest)
		}
		if plain > 0 {
			m := copy(p[n:], u.rest[:plain])
			u.rest, n = u.rest[m:], n+m
			continue
		}
		u.escape()
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// plainEscapes are the escapes of one character.
var plainEscapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads the escape at the beginning of the rest.
func (u *unquoter) escape() {
	if u.rest[1] != 'u' {
		u.char, u.rest = append(u.room[:0], plainEscapes[u.rest[1]]), u.rest[2:]
		return
	}
	r := u.unit()
	if utf16.IsSurrogate(r) {
		second := rune(utf8.RuneError)
		if len(u.rest) >= 6 && u.rest[0] == '\\' && u.rest[1] == 'u' {
			before := u.rest
			second = u.unit()
			if utf16.DecodeRune(r, second) == utf8.RuneError {
				u.rest = before // it stands for itself
			}
		}
		r = utf16.DecodeRune(r, second)
	}
	u.char = utf8.AppendRune(u.room[:0], r)
}

// unit reads \uXXXX.
func (u *unquoter) unit() rune {
	n, _ := strconv.ParseUint(string(u.rest[2:6]), 16, 32)
	u.rest = u.rest[6:]
	return rune(n)
}
