package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"nightporter/internal/mcp/access"
)

type gatewayTokensCmd struct {
	Add    tokensAddCmd    `cmd:"" help:"Make a token for a client, and print it once."`
	List   tokensListCmd   `cmd:"" help:"List the tokens, without what is secret of them."`
	Revoke tokensRevokeCmd `cmd:"" help:"Make a token good for nothing."`
}

// lockPatience bounds the wait for another process that changes the tokens.
const lockPatience = 10 * time.Second

type tokensAddCmd struct {
	Name     string   `arg:"" placeholder:"NAME" help:"Whose token it is: stands in status and in the audit record."`
	Grant    []string `sep:"none" placeholder:"NAME" help:"It reaches what [grants.NAME] says. May be repeated."`
	Server   []string `sep:"none" placeholder:"NAME" help:"It reaches all tools of this server. May be repeated."`
	Exposure *string  `enum:"tools,search" placeholder:"HOW" help:"How tools are shown: tools or search. Default: as the grant says, else the gateway."`
	Expires  string   `placeholder:"WHEN" help:"Good for this time, such as 30d or 12h, or until a date or time. Default: until it is revoked."`
}

func (*tokensAddCmd) Help() string {
	return `The token is printed on standard output, and cannot be read again: only its hash is kept. With neither
--grant nor --server it reaches all that the gateway serves. A running gateway takes it at once.

Examples:

	nightporter gateway tokens add ci --grant support --expires 30d
	nightporter gateway tokens add alice --server docs --server github >alice.token`
}

func (c *tokensAddCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if err := checkServers(cfg, c.Server); err != nil {
		return err
	}
	for _, grant := range c.Grant {
		if _, err := findGrant(cfg, grant); err != nil {
			return err
		}
	}
	t := access.Token{Name: c.Name, Grants: c.Grant, Servers: c.Server, Exposure: given(c.Exposure)}
	if t.Expires, err = expiry(c.Expires, time.Now()); err != nil {
		return err
	}
	ctx, done := context.WithTimeout(context.Background(), lockPatience)
	defer done()
	token, err := access.Open(a.dirs.Tokens()).Add(ctx, t)
	if err != nil {
		return err
	}
	until := "until it is revoked"
	if !t.Expires.IsZero() {
		until = "until " + t.Expires.Local().Format(time.DateTime)
	}
	a.say("the token of %s reaches %s, %s; this is the only time that it is shown", t.Name, reached(t), until)
	_, err = fmt.Fprintln(a.stdout, token.Reveal())
	return err
}

// reached says what a token is good for.
func reached(t access.Token) string {
	var parts []string
	for _, grant := range t.Grants {
		parts = append(parts, "grant "+grant)
	}
	for _, server := range t.Servers {
		parts = append(parts, "server "+server)
	}
	if len(parts) == 0 {
		return "all that the gateway serves"
	}
	return strings.Join(parts, ", ")
}

// expiry reads when something ends: a time from now, in days too, or a date or time. Empty is never.
func expiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, ok := time.Time{}, false
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		if n, err := strconv.Atoi(days); err == nil && n < maxDays {
			at, ok = now.AddDate(0, 0, n), true
		}
	} else if d, err := time.ParseDuration(text); err == nil {
		at, ok = now.Add(d), true
	} else {
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", time.DateOnly} {
			if at, err = time.ParseInLocation(layout, text, time.Local); err == nil {
				ok = true
				break
			}
		}
	}
	switch {
	case !ok:
		return time.Time{}, usage("for example 30d, 12h, 2027-01-31 or 2027-01-31T18:00", "--expires %s is neither a time from now nor a date", text)
	case !at.After(now):
		return time.Time{}, usage("name a later one", "--expires %s is not in the future", text)
	}
	return at.UTC().Truncate(time.Second), nil
}

// maxDays keeps a slip of the keyboard from making a token that is good for longer than anybody lives.
const maxDays = 100 * 365

type tokensListCmd struct {
	JSON bool `name:"json" help:"Print an array of objects."`
}

func (*tokensListCmd) Help() string {
	return `Your own token, which is in a file, is not among them.

Examples:

	nightporter gateway tokens list
	nightporter gateway tokens list --json`
}

// listedToken is a token as it is printed.
type listedToken struct {
	Name     string    `json:"name"`
	Grants   []string  `json:"grants"`
	Servers  []string  `json:"servers"`
	Exposure string    `json:"exposure,omitempty"`
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires,omitzero"`
	Expired  bool      `json:"expired"`
}

func (c *tokensListCmd) Run(a *app) error {
	tokens, err := access.Open(a.dirs.Tokens()).List()
	if err != nil {
		return err
	}
	now := time.Now()
	if c.JSON {
		listed := []listedToken{}
		for _, t := range tokens {
			listed = append(listed, listedToken{t.Name, some(t.Grants), some(t.Servers), t.Exposure, t.Created, t.Expires, t.Expired(now)})
		}
		return writeJSON(a.stdout, listed)
	}
	t := newTable(a.stdout, "NAME", "REACHES", "SHOWN AS", "CREATED", "EXPIRES")
	for _, token := range tokens {
		expires := "never"
		switch {
		case token.Expired(now):
			expires = "expired"
		case !token.Expires.IsZero():
			expires = token.Expires.Local().Format(time.DateTime)
		}
		t.row(token.Name, oneLine(reached(token)), orDash(token.Exposure), token.Created.Local().Format(time.DateTime), expires)
	}
	return t.flush()
}

// some is a list that is no null in JSON.
func some(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

type tokensRevokeCmd struct {
	Name string `arg:"" placeholder:"NAME" help:"Whose token it is."`
}

func (*tokensRevokeCmd) Help() string {
	return `A running gateway refuses it at once, and ends its sessions and streams within a second.

Example:

	nightporter gateway tokens revoke alice`
}

func (c *tokensRevokeCmd) Run(a *app) error {
	store := access.Open(a.dirs.Tokens())
	ctx, done := context.WithTimeout(context.Background(), lockPatience)
	defer done()
	err := store.Revoke(ctx, c.Name)
	if errors.Is(err, access.ErrNoToken) {
		var names []string
		tokens, _ := store.List()
		for _, t := range tokens {
			names = append(names, t.Name)
		}
		return usage(nearest("tokens", c.Name, names), "there is no token %q", c.Name)
	}
	if err != nil {
		return err
	}
	a.say("the token of %s is revoked", c.Name)
	return nil
}
