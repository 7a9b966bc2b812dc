package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// format is the version of the file format. It is also in file names, so that versions of Nightporter that
// differ in it can share a folder without touching each other's files. A change of
// the identity's or revision's encoding changes it too.
const format = 1

// maxFile bounds a catalog file. A catalog of 20,000 tools of 1.5 KB each still fits; the largest real ones
// measured have a few hundred KB. Beyond it a server is never deferred.
const maxFile = 32 << 20

// A file is a header line and a body. The header holds the format and the SHA-256 of the body; it is compared as
// a whole, so that every flipped bit in it counts.
func header(body []byte) []byte {
	return fmt.Appendf(nil, "nightporter-catalog %d sha256 %x\n", format, sha256.Sum256(body))
}

// fileBody is the body, one JSON object. The order of fields is the order in the file.
type fileBody struct {
	Server       string            `json:"server"`
	Identity     Identity          `json:"identity"`
	Revision     string            `json:"revision"`
	FetchedAt    time.Time         `json:"fetched_at"`
	Protocol     string            `json:"protocol"`
	Instructions string            `json:"instructions"`
	TTLMillis    int64             `json:"ttl_ms,omitempty"`
	CacheScope   string            `json:"cache_scope,omitempty"`
	ServerInfo   json.RawMessage   `json:"server_info,omitempty"`
	Capabilities json.RawMessage   `json:"capabilities,omitempty"`
	Tools        []json.RawMessage `json:"tools,omitempty"`
	Prompts      []json.RawMessage `json:"prompts,omitempty"`
	Resources    []json.RawMessage `json:"resources,omitempty"`
	Templates    []json.RawMessage `json:"templates,omitempty"`
}

// encode returns c's file. What the server sent is copied in by hand: json.Marshal would rewrite its white space
// and, with HTML escaping, its strings.
func encode(c *Catalog) ([]byte, error) {
	if !utf8.ValidString(c.Server) {
		return nil, errors.New("the server's name is not UTF-8")
	}
	body, err := json.Marshal(fileBody{
		Server:       c.Server,
		Identity:     c.Identity,
		Revision:     c.Revision,
		FetchedAt:    c.FetchedAt.UTC(),
		Protocol:     c.Protocol,
		Instructions: c.Instructions,
		TTLMillis:    c.TTL.Milliseconds(),
		CacheScope:   c.CacheScope,
	})
	if err != nil {
		return nil, err
	}
	body = bytes.TrimSuffix(body, []byte{'}'})
	for _, member := range []struct {
		name string
		raw  json.RawMessage
	}{{"server_info", c.ServerInfo}, {"capabilities", c.Capabilities}} {
		if member.raw == nil {
			continue
		}
		if !json.Valid(member.raw) {
			return nil, fmt.Errorf("%s is not JSON", member.name)
		}
		body = append(fmt.Appendf(body, ",\n%q:", member.name), member.raw...)
	}
	for _, list := range c.lists() {
		body = fmt.Appendf(body, ",\n%q:[", list.name)
		for i, raw := range *list.raws {
			if !json.Valid(raw) {
				return nil, fmt.Errorf("%s[%d] is not JSON", list.name, i)
			}
			if i > 0 {
				body = append(body, ',')
			}
			body = append(append(body, '\n'), raw...)
		}
		body = append(body, ']')
	}
	body = append(body, "}\n"...)
	// Each part is valid, but the whole is nested deeper than its parts, and encoding/json has a limit there.
	if !json.Valid(body) {
		return nil, errors.New("a definition is nested too deep")
	}
	file := append(header(body), body...)
	if len(file) > maxFile {
		return nil, fmt.Errorf("it would be %d bytes, and a catalog file may have %d", len(file), maxFile)
	}
	return file, nil
}

// decode reads a file. It returns either what encode was given or an error.
func decode(file []byte) (*Catalog, error) {
	if len(file) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	end := bytes.IndexByte(file, '\n') + 1
	if end == 0 || !bytes.Equal(file[:end], header(file[end:])) {
		return nil, errors.New("the header line does not fit the content: cut off, changed, or not a catalog of this format")
	}
	body := file[end:]
	if !json.Valid(body) {
		return nil, errors.New("it is not JSON")
	}
	start := space(body, 0)
	if body[start] != '{' {
		return nil, errors.New("it is not an object")
	}
	// What the server sent stays where it is in the file's bytes: a large catalog is read by many clients, and looked into by few.
	c := &Catalog{Cacheable: true} // others are never stored
	var ttl int64
	raws := map[string]*json.RawMessage{"server_info": &c.ServerInfo, "capabilities": &c.Capabilities}
	texts := map[string]any{
		"server": &c.Server, "identity": &c.Identity, "revision": &c.Revision, "fetched_at": &c.FetchedAt, "protocol": &c.Protocol,
		"instructions": &c.Instructions, "ttl_ms": &ttl, "cache_scope": &c.CacheScope,
	}
	lists := map[string]*[]json.RawMessage{}
	for _, l := range c.lists() {
		lists[l.name] = l.raws
	}
	var failed error
	object(body, start, func(key []byte, i int) int {
		end := value(body, i)
		raw := json.RawMessage(body[i:end:end])
		name := string(key[1 : len(key)-1])
		switch {
		case raws[name] != nil:
			*raws[name] = raw
		case lists[name] != nil && raw[0] == '[':
			array(body, i, func(i int) int {
				end := value(body, i)
				*lists[name] = append(*lists[name], body[i:end:end])
				return end
			})
		case lists[name] != nil:
			failed = errors.Join(failed, fmt.Errorf("%s is not a list", name))
		case texts[name] != nil:
			failed = errors.Join(failed, json.Unmarshal(raw, texts[name]))
		}
		return end
	})
	c.TTL = time.Duration(ttl) * time.Millisecond
	if failed != nil {
		return nil, failed
	}
	return c, nil
}
