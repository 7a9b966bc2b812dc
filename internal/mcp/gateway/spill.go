package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
)

// A result that is longer than its server's max_result_bytes is kept aside, and the client gets one in its place that says so: with the
// beginning, and where the rest is read in pieces (docs/results.md; why so: docs/decisions/0008-long-results.md).

// boundedMethods are the requests beside calls of tools whose results may be kept aside, with what they are about.
var boundedMethods = map[string]string{wire.ResourcesRead: "resource", wire.PromptsGet: "prompt", "tasks/result": "task"}

// limit is how long a result of the server may be; 0: of any length.
func (e *Endpoint) limit(server string) int64 {
	if def, ok := e.rt.Config().Server(server); ok {
		return def.MaxResultBytes
	}
	return 0
}

// limited reports whether a result of any server of the scope may be kept aside.
func (e *Endpoint) limited(s *runtime.Scope) bool {
	for _, name := range s.Servers() {
		if e.limit(name) > 0 {
			return true
		}
	}
	return false
}

// aside is what is held for a client, or for all clients of a run.
type aside struct {
	finder finder
	kept   shelf
}

func (a *aside) close() {
	a.finder.close()
	a.kept.close()
}

func (c *client) aside() *aside {
	if c.shared {
		return &c.e.aside
	}
	return &c.mine
}

// metaKept is the member of _meta that tells programs what the text tells models.
const metaKept = "nightporter/kept"

// bounded returns a result of a server, or what stands in its place when it is too long. what says of what it is the result.
func (c *client) bounded(server, what string, r request, result json.RawMessage) (json.RawMessage, *wire.RPCError) {
	limit := c.e.limit(server)
	if limit == 0 || int64(len(result)) <= limit || inputRequired(result) {
		return result, nil
	}
	k, err := c.aside().kept.put(result, r.method)
	if err != nil {
		// Handing it on whole would be the less protection; that it was made must not be lost.
		return nil, wire.Errorf(wire.CodeServer, "nightporter: the answer of %s of server %s is %d bytes, over max_result_bytes = %d, and could not be kept aside: %v. The request was carried out.", what, server, len(result), limit, err)
	}
	return k.instead(notice{server, what, limit, c.links()}, result), nil
}

// links reports whether the client's revision knows resource links in results.
func (c *client) links() bool { return c.who.Version >= "2025-06-18" }

// notice is what a result in place of another says.
type notice struct {
	server, what string
	limit        int64
	links        bool
}

const (
	// preview is how much of a long result is shown at once: enough to see what it is.
	preview = 4 << 10
	// maxLinks bounds the parts that are named one by one.
	maxLinks = 20
	// piece is how much is read at a time when nothing else is said, and maxPiece how much at most by the tool, whose
	// answers are for models.
	piece    = 16 << 10
	maxPiece = 1 << 20
)

// instead makes the result that stands in the place of k.
func (k *keptResult) instead(n notice, result json.RawMessage) json.RawMessage {
	var b strings.Builder
	fmt.Fprintf(&b, "nightporter: the answer of %s of server %s is %d bytes, over the bound of %d that is set for that server. It was kept aside, whole; this stands in its place.\n", n.what, n.server, len(result), n.limit)
	fmt.Fprintf(&b, "\nRead it in pieces with the tool %s, by uri, offset and length, or as a resource with ?offset=0&length=%d behind the uri:\n", readTool.name, piece)
	for i, p := range k.parts {
		if i > maxLinks {
			fmt.Fprintf(&b, "- and %d more parts\n", len(k.parts)-i)
			break
		}
		if i > 0 || len(k.parts) == 1 { // the whole is named where it has no parts
			fmt.Fprintf(&b, "- %s (%s, %d bytes)\n", k.uri(p), p.mime, p.size())
		}
	}
	if text, of := k.beginning(min(preview, n.limit)); text != "" {
		fmt.Fprintf(&b, "\nThe first %d bytes of %s:\n\n%s", len(text), k.uri(of), text)
	}
	about := wire.Encode(map[string]any{"uri": k.uri(k.parts[0]), "bytes": len(result)})
	text := wire.Encode(map[string]string{"type": "text", "text": b.String()})
	var links []json.RawMessage
	for i, p := range k.parts {
		if n.links && i > 0 && i <= maxLinks {
			uri := fmt.Sprintf("%s?offset=0&length=%d", k.uri(p), min(piece, p.size()))
			if p.kind == kindBlob {
				uri = k.uri(p) // part of an image is none
			}
			links = append(links, wire.Encode(map[string]any{
				"type": "resource_link", "uri": uri, "name": p.name, "mimeType": p.mime, "size": p.size(),
				"description": "Kept aside by Nightporter: read it in pieces by offset and length.",
			}))
		}
	}
	instead := json.RawMessage("{}")
	members, _ := wire.Members(result) // kept it was, so that it is an object
	left := n.limit
	for _, m := range members {
		switch m.Key {
		case "content": // of a tool's result
			instead = wire.Set(instead, wire.Encode(append([]json.RawMessage{text}, links...)), m.Key)
		case "contents": // of a resource
			contents := wire.Set(nil, wire.Quote(k.uri(k.parts[0])), "uri")
			contents = wire.Set(wire.Set(contents, wire.Quote("text/plain"), "mimeType"), wire.Quote(b.String()), "text")
			instead = wire.Set(instead, wire.Encode([]json.RawMessage{contents}), m.Key)
		case "messages": // of a prompt
			messages := []json.RawMessage{wire.Set(json.RawMessage(`{"role":"user"}`), text, "content")}
			for _, link := range links {
				messages = append(messages, wire.Set(json.RawMessage(`{"role":"user"}`), link, "content"))
			}
			instead = wire.Set(instead, wire.Encode(messages), m.Key)
		default:
			// What is short stays, isError and _meta among it. A structured result that is short stays valid; without one, the text counts.
			if int64(len(m.Value)) <= left {
				instead = wire.Set(instead, m.Value, m.Key)
				left -= int64(len(m.Value))
			}
		}
	}
	if k.method == wire.ToolsCall && wire.Get(instead, "content") == nil {
		instead = wire.Set(instead, wire.Encode(append([]json.RawMessage{text}, links...)), "content")
	}
	return wire.Set(instead, about, "_meta", metaKept)
}

// beginning is the first text of the result, at most so many bytes, and the part that it is of.
func (k *keptResult) beginning(most int64) (string, part) {
	for _, p := range k.parts {
		if p.kind != kindText || p.name == wholeName && len(k.parts) > 1 {
			continue
		}
		text, _, err := k.read(p, 0, most)
		if err != nil {
			return "", p
		}
		return string(text), p
	}
	return "", part{}
}

// How what is kept is addressed: nightporter://results/ID for the whole, as the server sent it; behind that a part of it:
// content/0, contents/0 and messages/0 for what stands there, decoded, and structuredContent.
const resultPrefix = "nightporter://results/"

var resultTemplate = json.RawMessage(`{"uriTemplate":"nightporter://results/{id}{/part*}{?offset,length}","name":"nightporter_results",` +
	`"title":"Results kept aside","description":"Results over their server's bound, in pieces: offset and length are in bytes."}`)

func isResult(uri string) bool { return strings.HasPrefix(uri, resultPrefix) }

func (k *keptResult) uri(p part) string {
	if p.name == wholeName {
		return resultPrefix + k.id
	}
	return resultPrefix + k.id + "/" + p.name
}

// address is what a URI of a result says.
type address struct {
	id, part       string
	offset, length int64 // length is negative when it is not said
}

func parseAddress(uri string) (a address, err error) {
	u, err := url.Parse(uri)
	if err != nil || !isResult(uri) {
		return a, fmt.Errorf("%q is not the uri of a result: they begin with %s", shortened(uri, 200), resultPrefix)
	}
	a.id, a.part, _ = strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	a.length = -1
	for key, into := range map[string]*int64{"offset": &a.offset, "length": &a.length} {
		text := u.Query().Get(key)
		if text == "" {
			continue
		}
		if *into, err = strconv.ParseInt(text, 10, 64); err != nil || *into < 0 {
			return a, fmt.Errorf("%s=%s is not a whole number of 0 or more", key, shortened(text, 40))
		}
	}
	return a, nil
}

// readKept answers a request about a result that was kept aside. It comes only to its own client: nobody else's is looked at.
func (c *client) readKept(r request, uri string) (json.RawMessage, *wire.RPCError) {
	if r.method != wire.ResourcesRead {
		return nil, wire.Errorf(wire.CodeInvalidParams, "results that were kept aside do not change: there is nothing to subscribe to")
	}
	p, a, k, err := c.keptPart(uri)
	var content json.RawMessage
	if err == nil {
		if a.length < 0 {
			a.length = p.size()
		}
		content, err = k.content(p, uri, a.offset, a.length)
	}
	if err != nil {
		code := wire.CodeResourceNotFound
		if r.modern {
			code = wire.CodeInvalidParams
		}
		rpcErr := wire.Errorf(code, "%v", err)
		rpcErr.Data = wire.Encode(map[string]string{"uri": uri})
		return nil, rpcErr
	}
	return list("contents", []json.RawMessage{content}), nil
}

func (c *client) keptPart(uri string) (p part, a address, k *keptResult, err error) {
	if a, err = parseAddress(uri); err != nil {
		return p, a, nil, err
	}
	if k = c.aside().kept.find(a.id); k == nil {
		return p, a, nil, errNotKept
	}
	for _, p := range k.parts {
		if p.name == cmp.Or(a.part, wholeName) {
			return p, a, k, nil
		}
	}
	return p, a, nil, fmt.Errorf("the result has no part %q", shortened(a.part, 100))
}

var errNotKept = errors.New("there is no such result here, or no more: the oldest go first, and all go with their client. Make the call again, if it may be made twice")

// content is a piece of a part as the contents of a resource.
func (k *keptResult) content(p part, uri string, offset, length int64) (json.RawMessage, error) {
	data, from, err := k.read(p, offset, length)
	if err != nil {
		return nil, err
	}
	c := wire.Set(wire.Set(nil, wire.Quote(uri), "uri"), wire.Quote(p.mime), "mimeType")
	if p.kind == kindBlob {
		c = wire.Set(c, wire.Quote(base64.StdEncoding.EncodeToString(data)), "blob")
	} else {
		c = wire.Set(c, wire.Quote(string(data)), "text")
	}
	return wire.Set(c, wire.Encode(map[string]int64{"offset": from, "length": int64(len(data)), "size": p.size()}), "_meta", metaKept), nil
}

const readDefinition = `{
"title": "Read a result that was kept aside",
"description": "Reads a piece of a result that was too long to be shown at once. The result that stood in its place gives the uri. Text is returned as text, an image as an image.",
"inputSchema": {"type": "object", "properties": {
 "uri": {"type": "string", "description": "As the result gave it, such as nightporter://results/ID/content/0."},
 "offset": {"type": "integer", "minimum": 0, "description": "Where to begin, in bytes; 0 when left out."},
 "length": {"type": "integer", "minimum": 1, "maximum": 1048576, "description": "How many bytes at most; 16384 when left out."}},
 "required": ["uri"]},
"annotations": {"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}}`

// readResult is the tool for clients and models that read no resources.
func (c *client) readResult(_ context.Context, arguments json.RawMessage) (json.RawMessage, error) {
	uri, ok := wire.GetString(arguments, "uri")
	if !ok {
		return nil, errors.New("uri is not a text")
	}
	p, a, k, err := c.keptPart(uri)
	if err != nil {
		return nil, err
	}
	ranged := a.length >= 0 || a.offset > 0 || wire.Get(arguments, "offset") != nil || wire.Get(arguments, "length") != nil
	if p.kind == kindBlob && !ranged {
		return k.wholeBlob(p, uri)
	}
	offset, err := whole(arguments, "offset", a.offset)
	if err != nil {
		return nil, err
	}
	length := int64(piece)
	if a.length >= 0 {
		length = a.length
	}
	if length, err = whole(arguments, "length", length); err != nil {
		return nil, err
	}
	length = min(max(length, 1), maxPiece)
	if p.kind == kindBlob {
		content, err := k.content(p, uri, offset, length)
		if err != nil {
			return nil, err
		}
		return list("content", []json.RawMessage{wire.Set(json.RawMessage(`{"type":"resource"}`), content, "resource")}), nil
	}
	data, from, err := k.read(p, offset, length)
	if err != nil {
		return nil, err
	}
	to := from + int64(len(data))
	where := fmt.Sprintf("[bytes %d to %d of %d; ", from, to, p.size())
	if to < p.size() {
		where += fmt.Sprintf("go on with offset %d]", to)
	} else {
		where += "this is the end]"
	}
	return wire.Encode(map[string]any{"content": []map[string]string{{"type": "text", "text": string(data)}, {"type": "text", "text": where}}}), nil
}

// wholeBlob is a tool's result with all of an image or a sound, which is of use only whole. A model gets it as the tool would
// have given it.
func (k *keptResult) wholeBlob(p part, uri string) (json.RawMessage, error) {
	block, err := k.bytes(p.block)
	if err != nil {
		return nil, err
	}
	if _, content := wire.GetString(block, "type"); !content { // of a resource or a prompt
		resource, err := k.content(p, uri, 0, p.size())
		if err != nil {
			return nil, err
		}
		block = wire.Set(json.RawMessage(`{"type":"resource"}`), resource, "resource")
	}
	return list("content", []json.RawMessage{block}), nil
}

// read returns a piece of a part, and where it begins. A text is cut between characters: the piece may begin up to three bytes later and end as
// many earlier than asked, and holds one character at least.
func (k *keptResult) read(p part, offset, length int64) (data []byte, from int64, err error) {
	if offset > p.size() {
		return nil, 0, fmt.Errorf("offset %d is behind the end: the part has %d bytes", offset, p.size())
	}
	length = min(length, p.size()-offset)
	if p.kind == kindBlob {
		data, err = k.bytes(span{p.from + offset, p.from + offset + length})
		return data, offset, err
	}
	const beyond = utf8.UTFMax - 1
	data, err = k.bytes(span{p.from + offset, p.from + min(offset+length+beyond, p.size())})
	if err != nil {
		return nil, 0, err
	}
	start := int64(0)
	for start < beyond && start < int64(len(data)) && !utf8.RuneStart(data[start]) {
		start++
	}
	end := min(length, int64(len(data)))
	for end > start && end < int64(len(data)) && !utf8.RuneStart(data[end]) {
		end--
	}
	if end <= start { // less than one character was asked for
		_, n := utf8.DecodeRune(data[start:])
		end = start + int64(n)
	}
	return data[start:end], offset + start, nil
}

// newID is the id of a result: nobody can guess it.
func newID() string { return strings.ToLower(rand.Text()) }
