package clients

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"nightporter/internal/config"
	"nightporter/internal/safefile"
	"nightporter/internal/secret"
)

// Keeping says where secrets go that stand in a client's file as they are.
type Keeping string

// The places of secrets.
const (
	AsIs      Keeping = "keep"    // into config.toml, as they are
	InKeyring Keeping = "keyring" // into the system's keyring
	InFile    Keeping = "file"    // into a file each, in a folder beside config.toml
)

// Secret is a text of an entry that looks like one.
type Secret struct {
	Field string // of the entry, such as env.GITHUB_TOKEN
	// Fixed says that it stands on a command line, where no reference to a secret can stand.
	Fixed bool

	name  string // of the server and the field
	value secret.String
}

// keyringService is the beginning of the services under which the keyring has the secrets of servers.
const keyringService = "nightporter"

// SecretsFolder is where, beside config.toml, secrets are kept in files.
const SecretsFolder = "secrets"

// reference is what stands in config.toml for a secret of a server.
func (k Keeping) reference(name string) string {
	if k == InKeyring {
		return "${keyring:" + keyringService + "/" + name + "}"
	}
	return "${file:" + SecretsFolder + "/" + name + "}"
}

// store keeps the secret where its reference says. dir is config.toml's folder.
func (k Keeping) store(ctx context.Context, dir string, s Secret) error {
	if k == InKeyring {
		if err := config.PutKeyring(ctx, keyringService, s.name, s.value); err != nil {
			return fmt.Errorf("keep %s in the keyring: %w", s.Field, err)
		}
		return nil
	}
	return safefile.Write(filepath.Join(dir, SecretsFolder, s.name), []byte(s.value.Reveal()+"\n"))
}

// secretName is a name for a secret that no file system, keyring and reference misreads, and that no two secrets share.
func secretName(server, field string) string {
	name := server + "." + field
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || strings.ContainsRune("_-.", r) {
			return r
		}
		return '_'
	}, name)
	// Some file systems take capitals and small letters for the same, and servers may differ in them alone.
	if safe != name || strings.ToLower(server) != server || len(safe) > 100 || strings.HasPrefix(safe, ".") {
		sum := sha256.Sum256([]byte(name))
		safe = strings.TrimLeft(safe[:min(len(safe), 80)], ".") + "-" + hex.EncodeToString(sum[:4])
	}
	return safe
}

// schemesOfHeaders are beginnings of header values that are no secret.
var schemesOfHeaders = []string{"Bearer ", "bearer ", "Basic ", "Token ", "token "}

// move finds the secrets of a server, and returns it with references in their places. With AsIs nothing is replaced.
func (k Keeping) move(s config.NewServer) (config.NewServer, []Secret) {
	var found []Secret
	// take returns what stands in the place of a secret.
	take := func(field, name, text string) string {
		one := Secret{Field: field, name: secretName(s.Name, name), value: secret.New(text)}
		found = append(found, one)
		if k == AsIs {
			return literal(text)
		}
		return k.reference(one.name)
	}
	s.Env = slices.Clone(s.Env)
	for i, pair := range s.Env {
		if text, ok := plainText(pair[1]); ok && config.LooksSecret(pair[0], text) {
			s.Env[i][1] = take("env."+pair[0], pair[0], text)
		}
	}
	s.Headers = slices.Clone(s.Headers)
	for i, pair := range s.Headers {
		text, ok := plainText(pair[1])
		if !ok || !config.LooksSecret(pair[0], text) {
			continue
		}
		before := ""
		for _, scheme := range schemesOfHeaders {
			if rest, is := strings.CutPrefix(text, scheme); is {
				before, text = scheme, rest
				break
			}
		}
		s.Headers[i][1] = before + take("http_headers."+pair[0], pair[0], text)
	}
	s.Settings = slices.Clone(s.Settings)
	for i, set := range s.Settings {
		if text, ok := set.Value.(string); ok && slices.Equal(set.Key, []string{"oauth", "client_secret"}) {
			if text, ok = plainText(text); ok && text != "" {
				s.Settings[i].Value = take("oauth.client_secret", "client_secret", text)
			}
		}
	}
	s.URL = inURL(s.URL, take)
	args := make([]config.Value, len(s.Args))
	for i, arg := range s.Args {
		args[i] = config.Literal(arg)
	}
	for i, shown := range config.ListedArgs(args) {
		if _, ok := plainText(s.Args[i]); ok && shown != s.Args[i] {
			found = append(found, Secret{Field: fmt.Sprintf("args[%d]", i), Fixed: true})
		}
	}
	return s, found
}

// plainText is what a value of config.toml says, when it refers to nothing.
func plainText(text string) (string, bool) {
	v, err := config.ParseValue(text)
	if err != nil || !v.IsLiteral() {
		return "", false
	}
	return v.Text(), true
}

// inURL replaces the password and the parameters of an address that look like secrets.
func inURL(address string, take func(field, name, text string) string) string {
	if _, ok := plainText(address); !ok {
		return address
	}
	if u, err := url.Parse(address); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			scheme, rest, _ := strings.Cut(address, "://")
			user, host, _ := strings.Cut(rest, "@")
			name, password, _ := strings.Cut(user, ":")
			address = scheme + "://" + name + ":" + take("url", "url", password) + "@" + host
		}
	}
	before, query, ok := strings.Cut(address, "?")
	if !ok {
		return address
	}
	query, fragment, hash := strings.Cut(query, "#")
	parameters := strings.Split(query, "&")
	for i, p := range parameters {
		if key, value, ok := strings.Cut(p, "="); ok && value != "" && config.LooksSecret(key, value) {
			parameters[i] = key + "=" + take("url?"+key, "url."+key, value)
		}
	}
	address = before + "?" + strings.Join(parameters, "&")
	if hash {
		address += "#" + fragment
	}
	return address
}
