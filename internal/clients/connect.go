package clients

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"nightporter/internal/config"
	"nightporter/internal/safefile"
	"nightporter/internal/secret"
)

// attachment is how a client writes down a server that it is to use.
type attachment struct {
	form     form
	url      string // the key of an address; empty: its file takes none
	tokenVar string // how its file refers to a variable of its environment, with %s for the name; empty: it cannot
}

// form is what an entry begins with.
type form int

const (
	bare   form = iota // nothing
	typed              // type, which is stdio or http
	custom             // source, which is custom
)

// Endpoint is how a client is to reach Nightporter: by a program, or at an address.
type Endpoint struct {
	Command string
	Args    []string
	Env     [][2]string
	EnvVars []string // that the program needs of the client's environment; for clients that hand over those that are named alone

	URL string
	// Variable is where the client finds the token. Empty: it stands in the file.
	Variable string
	Token    secret.String // counts where there is no Variable
}

// TakesURL reports whether the client's file can name a server by its address.
func (c *Client) TakesURL() bool { return c.attach.url != "" }

// ReadsVariables reports whether the client's file can refer to a variable of its environment in place of a token.
func (c *Client) ReadsVariables() bool { return c.attach.tokenVar != "" }

// fields is the endpoint as a JSON entry of the client.
func (c *Client) fields(e Endpoint) []field {
	kind := "stdio"
	if e.URL != "" {
		kind = "http"
	}
	var all []field
	switch c.attach.form {
	case typed:
		all = append(all, field{"type", kind})
	case custom:
		all = append(all, field{"source", "custom"})
	}
	if e.URL != "" {
		return append(all, field{c.attach.url, e.URL}, field{"headers", []field{{"Authorization", c.authorization(e)}}})
	}
	all = append(all, field{"command", e.Command}, field{"args", e.Args})
	var env []field
	for _, v := range e.Env {
		env = append(env, field{v[0], v[1]})
	}
	if env != nil {
		all = append(all, field{"env", env})
	}
	return all
}

func (c *Client) authorization(e Endpoint) string {
	if e.Variable != "" {
		return "Bearer " + fmt.Sprintf(c.attach.tokenVar, e.Variable)
	}
	return "Bearer " + e.Token.Reveal()
}

// table is the endpoint as an entry of Codex.
func (c *Client) table(name string, e Endpoint) config.NewServer {
	s := config.NewServer{Name: name, Command: e.Command, Args: e.Args, Env: e.Env, EnvVars: e.EnvVars, URL: e.URL}
	switch {
	case e.URL == "":
	case e.Variable != "":
		s.BearerTokenEnvVar = e.Variable
	default:
		s.Headers = [][2]string{{"Authorization", c.authorization(e)}}
	}
	return s
}

// put returns a file's text with the endpoint under a name, and the lines of the entry.
func (c *Client) put(f File, path string, data []byte, name string, e Endpoint) (text []byte, lines []string, err error) {
	var entry string
	if f.Keys == nil {
		s := c.table(name, e)
		text, err = config.AddServer(path, data, s, true)
		if alone, err := config.AddServer(path, nil, s, true); err == nil {
			entry = string(alone)
		}
	} else {
		var d *document
		if d, err = parse(path, data); err == nil {
			text, err = d.set(f.Keys, name, c.fields(e))
			entry = d.style().object(nest(f.Keys, field{name, c.fields(e)}), "")
		}
	}
	for line := range strings.Lines(entry) {
		lines = append(lines, bareLine(line))
	}
	return text, lines, err
}

// take returns a file's text without an entry.
func (c *Client) take(f File, path string, data []byte, name string) ([]byte, error) {
	if f.Keys == nil {
		return config.RemoveServer(path, data, name)
	}
	d, err := parse(path, data)
	if err != nil {
		return nil, err
	}
	return d.remove(f.Keys, name)
}

// bareLine is a line without what its place decides.
func bareLine(line string) string { return strings.TrimSuffix(strings.TrimSpace(line), ",") }

// Desk is where programs are connected to Nightporter.
type Desk struct {
	Place Place
	Dir   string                      // of what is kept of them
	Ours  func(config.NewServer) bool // tells Nightporter itself among a client's servers
}

// Change is what becomes of a client's file.
type Change struct {
	Client *Client
	Name   string // of the entry
	File   string
	Before []byte // nil: there is no file
	After  []byte // nil: there is none any more
	Backup string // the file that keeps what was before the client was connected
	// Restored says that the file becomes what it was before the client was connected. Else the entry alone goes.
	Restored bool
	// Others are other entries of the file that are Nightporter too.
	Others []string
	// Former is the name of a token that the entry used before, and needs no more. Empty: none.
	Former string
	// Token is the name of the token that the entry uses. Empty: none.
	Token string

	lines []string // of the entry
	mode  func(was fs.FileMode) fs.FileMode
	keep  *record // what is remembered afterwards; nil: nothing any more
	// stranger says that the entry is another one than what is remembered, which stays so.
	stranger bool
	base     []byte // what Backup is to hold
}

// record is what is remembered of a connected client.
type record struct {
	Version int         `json:"version"`
	Client  string      `json:"client"`
	File    string      `json:"file"`
	Name    string      `json:"name"`
	Existed bool        `json:"existed"` // the file, before
	Mode    fs.FileMode `json:"mode"`    // likewise
	After   string      `json:"after_sha256"`
	URL     string      `json:"url,omitempty"`
	Token   string      `json:"token,omitempty"`
}

// recordVersion is of the format. A record of another one is not used: then an entry alone is taken out.
const recordVersion = 1

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// kept is where things of a client's file are kept; one client may have several, by its environment.
func (d Desk) kept(c *Client, file, what string) string {
	return filepath.Join(d.Dir, c.ID+"-"+digest([]byte(file))[:8]+what)
}

// TokenFile is where the token is kept that a client reads from its environment.
func (d Desk) TokenFile(c *Client) string { return filepath.Join(d.Dir, c.ID+".token") }

func (d Desk) record(c *Client, file string) *record {
	data, err := os.ReadFile(d.kept(c, file, ".json"))
	if err != nil {
		return nil
	}
	var r record
	if json.Unmarshal(data, &r) != nil || r.Version != recordVersion || r.File != file {
		return nil
	}
	return &r
}

// File returns the file of the client in which Nightporter is or would be.
func (d Desk) File(c *Client) (string, error) {
	path := d.Place.Path(c.userFile())
	if path == "" {
		return "", fmt.Errorf("where %s keeps its servers is not known without a home folder", c.Name)
	}
	return path, nil
}

// entries is what stands in a client's file.
func (d Desk) entries(c *Client, f File, path string, data []byte) ([]Entry, error) {
	if f.Keys == nil {
		return codexEntries(d.Place, c, f, path, data)
	}
	doc, err := parse(path, data)
	if err != nil {
		return nil, err
	}
	table, err := doc.object(f.Keys)
	if err != nil || table == nil {
		return nil, err
	}
	source := Source{Client: c, File: path}
	return source.entries(d.Place, doc, f, table, ""), nil
}

// standing is the server of a name in a client's file, and whether it is Nightporter.
func (d Desk) standing(c *Client, f File, path string, data []byte, name string, old *record) (there, ours bool, err error) {
	entries, err := d.entries(c, f, path, data)
	for _, e := range entries {
		if e.Server.Name == name {
			return true, d.Ours(e.Server) || old != nil && old.URL != "" && e.Server.URL == old.URL, nil
		}
	}
	return false, false, err
}

// ErrTaken says that the client has another server of the name that Nightporter was to have.
var ErrTaken = errors.New("it is another server")

// Connect returns the change that points a client at Nightporter, under a name. Nothing is written. token is the name of the token in e, empty without
// one.
func (d Desk) Connect(c *Client, name string, e Endpoint, token string) (*Change, error) {
	path, err := d.File(c)
	if err != nil {
		return nil, err
	}
	f := c.userFile()
	data, mode, err := readClientFile(path)
	if err != nil {
		return nil, err
	}
	ch := &Change{
		Client: c, Name: name, File: path, Before: data, Backup: d.kept(c, path, ".backup"), Token: token, base: data,
		keep: &record{Version: recordVersion, Client: c.ID, File: path, Name: name, Existed: data != nil, Mode: mode, URL: e.URL, Token: token},
		mode: func(was fs.FileMode) fs.FileMode { return was },
	}
	if e.URL != "" && e.Variable == "" {
		ch.mode = func(was fs.FileMode) fs.FileMode { return was & safefile.FileMode }
	}
	old := d.record(c, path)
	if old != nil && old.Token != token {
		ch.Former = old.Token
	}
	if old != nil && data != nil && digest(data) == old.After {
		// Connected as it is: what counts is what was before that.
		backup, err := os.ReadFile(ch.Backup)
		if err != nil {
			return nil, fmt.Errorf("read what %s was before: %w", path, err)
		}
		ch.base, ch.keep.Existed, ch.keep.Mode = backup, old.Existed, old.Mode
		if !old.Existed {
			ch.base = nil
		}
	} else if data != nil {
		names := []string{name}
		if old != nil && old.Name != name {
			names = append(names, old.Name)
		}
		for _, n := range names {
			there, ours, err := d.standing(c, f, path, ch.base, n, old)
			switch {
			case err != nil:
				return nil, err
			case ours:
				if ch.base, err = c.take(f, path, ch.base, n); err != nil {
					return nil, err
				}
			case there && n == name:
				return nil, fmt.Errorf("%s has a server %s already: %w", path, name, ErrTaken)
			}
		}
	}
	if ch.After, ch.lines, err = c.put(f, path, ch.base, name, e); err != nil {
		return nil, err
	}
	ch.keep.After = digest(ch.After)
	entries, err := d.entries(c, f, path, ch.base)
	for _, e := range entries {
		if d.Ours(e.Server) {
			ch.Others = append(ch.Others, e.Server.Name)
		}
	}
	return ch, err
}

// DefaultName is what clients call Nightporter. It is not its own name: Codex mixes the settings of servers of one name, and a run's own server has that.
const DefaultName = "porter"

// Disconnect returns the change that takes Nightporter out of a client's file, or nil when it is not in it. A file that was not changed since becomes what
// it was. Without a name it is the one under which it was connected. Nothing is written.
func (d Desk) Disconnect(c *Client, name string) (*Change, error) {
	path, err := d.File(c)
	if err != nil {
		return nil, err
	}
	data, _, err := readClientFile(path)
	if err != nil {
		return nil, err
	}
	ch := &Change{Client: c, Name: name, File: path, Before: data, Backup: d.kept(c, path, ".backup"), mode: func(was fs.FileMode) fs.FileMode { return was }}
	old := d.record(c, path)
	switch {
	case old != nil && (name == "" || name == old.Name):
		ch.Name, ch.Token = old.Name, old.Token
	case name == "":
		ch.Name = DefaultName
	default:
		old, ch.stranger = nil, old != nil
	}
	if old != nil {
		if data != nil && digest(data) == old.After {
			ch.Restored = true
			ch.mode = func(fs.FileMode) fs.FileMode { return old.Mode }
			if !old.Existed {
				return ch, nil
			}
			if ch.After, err = os.ReadFile(ch.Backup); err != nil {
				return nil, fmt.Errorf("read what %s was before: %w", path, err)
			}
			return ch, nil
		}
	}
	ours := false
	if data != nil {
		if _, ours, err = d.standing(c, c.userFile(), path, data, ch.Name, old); err != nil {
			return nil, err
		}
	}
	switch {
	case !ours && old == nil:
		return nil, nil
	case !ours:
		ch.After = data // somebody took it out; what is kept of it goes
		return ch, nil
	}
	ch.After, err = c.take(c.userFile(), path, data, ch.Name)
	return ch, err
}

// readClientFile returns nil for a file that is missing, and the mode that one gets that is made.
func readClientFile(path string) ([]byte, fs.FileMode, error) {
	data, err := readFile(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, safefile.FileMode, nil
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if data == nil {
		data = []byte{}
	}
	return data, info.Mode().Perm(), nil
}

// Make writes the change, and what is remembered of it. A file that is another one by now is an error.
func (d Desk) Make(ctx context.Context, ch *Change) error {
	file := d.kept(ch.Client, ch.File, ".json")
	if ch.keep == nil {
		if err := d.write(ctx, ch); err != nil || ch.stranger {
			return err
		}
		return errors.Join(putBack(file, nil), putBack(ch.Backup, nil))
	}
	data, err := json.MarshalIndent(ch.keep, "", "  ")
	if err != nil {
		return err
	}
	wasRecord, _ := os.ReadFile(file)
	wasBackup, _ := os.ReadFile(ch.Backup)
	// First, so that no file is ever changed whose former content is not kept.
	err = safefile.Write(ch.Backup, ch.base)
	if err == nil {
		err = safefile.Write(file, append(data, '\n'))
	}
	if err == nil {
		err = d.write(ctx, ch)
	}
	if err != nil {
		return errors.Join(err, putBack(file, wasRecord), putBack(ch.Backup, wasBackup))
	}
	return nil
}

// putBack makes a file what it was, where nil is a file that was not there.
func putBack(file string, was []byte) error {
	if was != nil {
		return safefile.Write(file, was)
	}
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d Desk) write(ctx context.Context, ch *Change) error {
	changed := fmt.Errorf("%s was changed meanwhile; try again", ch.File)
	if ch.After == nil && ch.Before != nil {
		if now, err := readFile(ch.File, maxFile); err != nil || !bytes.Equal(now, ch.Before) {
			return changed
		}
		return os.Remove(ch.File)
	}
	_, err := config.EditFileOf(ctx, ch.File, d.kept(ch.Client, ch.File, ".lock"), maxFile, ch.mode, func(now []byte) ([]byte, error) {
		if !bytes.Equal(now, ch.Before) {
			return nil, changed
		}
		return ch.After, nil
	})
	return err
}

// Mine reports whether a line is one of the entry. Others may hold what is secret.
func (ch *Change) Mine(line string) bool { return slices.Contains(ch.lines, bareLine(line)) }
