package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"nightporter/client"
)

type hubKeysCmd struct {
	List   hubKeysListCmd   `cmd:"" help:"List the keys, without what is secret of them."`
	Add    hubKeysAddCmd    `cmd:"" help:"Make a key, and print it once."`
	Revoke hubKeysRevokeCmd `cmd:"" help:"Make a key, and the sessions that it opened, good for nothing."`
}

// listed asks for a list and prints it.
func listed[T any](a *app, f hubFlags, asJSON bool, path string, columns []string, row func(T) []string) error {
	hub, err := f.client(a)
	if err != nil {
		return err
	}
	var page client.Page[T]
	if err := hub.Get(context.Background(), path, &page); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.stdout, page.Items)
	}
	t := newTable(a.stdout, columns...)
	for _, item := range page.Items {
		cells := row(item)
		for i := range cells {
			cells[i] = oneLine(cells[i])
			if cells[i] == "" {
				cells[i] = "-"
			}
		}
		t.row(cells...)
	}
	return t.flush()
}

// moment is a time as tables have it.
func moment(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return t.Local().Format(time.DateTime)
}

type hubKeysListCmd struct {
	hubFlags
	JSON bool `name:"json" help:"Print an array."`
}

func (*hubKeysListCmd) Help() string { return "Examples:\n\n\tnightporter hub keys list" }

func (c *hubKeysListCmd) Run(a *app) error {
	return listed(a, c.hubFlags, c.JSON, "/v1/keys", []string{"NAME", "SCOPES", "CREATED", "USED", "EXPIRES", "REVOKED"}, func(k client.Key) []string {
		scopes := make([]string, len(k.Scopes))
		for i, scope := range k.Scopes {
			scopes[i] = string(scope)
		}
		return []string{k.Name, strings.Join(scopes, ","), moment(&k.Created), moment(k.LastUsed), moment(k.Expires), moment(k.Revoked)}
	})
}

type hubKeysAddCmd struct {
	hubFlags
	Name    string        `arg:"" help:"Whose key it is."`
	Scope   []string      `required:"" enum:"ask,read,approve,admin" placeholder:"SCOPE" help:"What it may do: ask, read, approve or admin. May be repeated."`
	Expires time.Duration `placeholder:"D" help:"Good for this time, such as 720h. Default: until it is revoked."`
}

func (*hubKeysAddCmd) Help() string {
	return `ask: send messages, and read the conversations of its own. read: read everything. approve: answer approvals and questions.
admin: keys, hosts, profiles, webhooks. A person who uses the console has as many as she needs.

Examples:

	nightporter hub keys add support-inbox --scope ask
	nightporter hub keys add ann --scope ask --scope read --scope approve`
}

func (c *hubKeysAddCmd) Run(a *app) error {
	hub, err := c.client(a)
	if err != nil {
		return err
	}
	body := map[string]any{"name": c.Name, "scopes": c.Scope}
	if c.Expires > 0 {
		body["expires"] = time.Now().Add(c.Expires)
	}
	var k client.Key
	if err := hub.Post(context.Background(), "/v1/keys", body, &k); err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, k.Secret)
	return err
}

type hubKeysRevokeCmd struct {
	hubFlags
	Name string `arg:"" help:"Its name or id."`
}

func (*hubKeysRevokeCmd) Help() string { return "Examples:\n\n\tnightporter hub keys revoke ann" }

func (c *hubKeysRevokeCmd) Run(a *app) error { return deleted(a, c.hubFlags, "/v1/keys/", c.Name) }

func deleted(a *app, f hubFlags, path, name string) error {
	hub, err := f.client(a)
	if err != nil {
		return err
	}
	return hub.Delete(context.Background(), path+url.PathEscape(name))
}

type hubProfilesCmd struct {
	List   hubProfilesListCmd   `cmd:"" help:"List the profiles."`
	Set    hubProfilesSetCmd    `cmd:"" help:"Make or change a profile."`
	Remove hubProfilesRemoveCmd `cmd:"" help:"Remove a profile."`
}

type hubProfilesListCmd struct {
	hubFlags
	JSON bool `name:"json" help:"Print an array."`
}

func (*hubProfilesListCmd) Help() string { return "Examples:\n\n\tnightporter hub profiles list" }

func (c *hubProfilesListCmd) Run(a *app) error {
	return listed(a, c.hubFlags, c.JSON, "/v1/profiles", []string{"NAME", "AGENT", "GRANT", "HUB TOOLS", "APPROVALS", "INSTRUCTIONS"}, func(p client.Profile) []string {
		approvals := "as the host says"
		if p.Approvals {
			approvals = "at the hub"
		}
		return []string{p.Name, p.Agent, p.Grant, strings.Join(p.HubTools, ","), approvals, p.Instructions}
	})
}

type hubProfilesSetCmd struct {
	hubFlags
	Name         string        `arg:"" help:"Its name; default is that of messages that name none."`
	Agent        string        `required:"" placeholder:"NAME" help:"The agent, by the name that hosts have for it."`
	Grant        string        `placeholder:"NAME" help:"The grant, by the name that hosts have for it. Default: no servers."`
	Instructions string        `placeholder:"TEXT" help:"Stand before the first message of a session."`
	HubTool      []string      `enum:"conversation_read,post_update,attach_file,ask_person" placeholder:"TOOL" help:"A tool of the hub's own that runs get. May be repeated."`
	Template     string        `placeholder:"NAME" help:"A folder of the hosts' templates that a new conversation's workspace is copied from."`
	Approvals    bool          `help:"Put calls that want an approval to people at the hub."`
	Timeout      time.Duration `placeholder:"D" help:"Stop a run after this time."`
	IdleTimeout  time.Duration `placeholder:"D" help:"Stop a run that printed nothing for this long."`
	MaxCost      float64       `placeholder:"USD" help:"Stop a run that has cost more."`
	MaxAttempts  int           `placeholder:"N" help:"How often a run is tried. Default: 3."`
	Unproven     bool          `help:"Accept an agent whose boundary cannot be proven, on hosts that accept it."`
}

func (*hubProfilesSetCmd) Help() string {
	return `A profile names what hosts have defined: an agent, a grant, a template. The hub itself defines no programs.

Examples:

	nightporter hub profiles set default --agent claude
	nightporter hub profiles set support --agent claude --grant support --approvals --instructions "You answer customers of a bakery."`
}

func (c *hubProfilesSetCmd) Run(a *app) error {
	hub, err := c.client(a)
	if err != nil {
		return err
	}
	return hub.Put(context.Background(), "/v1/profiles/"+url.PathEscape(c.Name), client.Profile{
		Name: c.Name, Instructions: c.Instructions, Agent: c.Agent, Grant: c.Grant, HubTools: c.HubTool, Template: c.Template, Approvals: c.Approvals,
		TimeoutSec: int(c.Timeout.Seconds()), IdleTimeoutSec: int(c.IdleTimeout.Seconds()), MaxCostUSD: c.MaxCost, MaxAttempts: c.MaxAttempts, Unproven: c.Unproven,
	}, nil)
}

type hubProfilesRemoveCmd struct {
	hubFlags
	Name string `arg:""`
}

func (*hubProfilesRemoveCmd) Help() string {
	return "Examples:\n\n\tnightporter hub profiles remove support"
}

func (c *hubProfilesRemoveCmd) Run(a *app) error {
	return deleted(a, c.hubFlags, "/v1/profiles/", c.Name)
}

type hubWebhooksCmd struct {
	List   hubWebhooksListCmd   `cmd:"" help:"List the webhooks, without their secrets."`
	Set    hubWebhooksSetCmd    `cmd:"" help:"Make or change a webhook; a new one's secret is printed once."`
	Remove hubWebhooksRemoveCmd `cmd:"" help:"Remove a webhook."`
}

type hubWebhooksListCmd struct {
	hubFlags
	JSON bool `name:"json" help:"Print an array."`
}

func (*hubWebhooksListCmd) Help() string { return "Examples:\n\n\tnightporter hub webhooks list" }

func (c *hubWebhooksListCmd) Run(a *app) error {
	return listed(a, c.hubFlags, c.JSON, "/v1/webhooks", []string{"NAME", "URL", "EVENTS", "OF"}, func(w client.Webhook) []string {
		of := "messages that name it"
		if w.All {
			of = "all conversations"
		}
		return []string{w.Name, w.URL, strings.Join(w.Events, ","), of}
	})
}

type hubWebhooksSetCmd struct {
	hubFlags
	Name  string   `arg:""`
	URL   string   `arg:"" name:"url"`
	Event []string `enum:"run.done,approval.asked,update.posted" placeholder:"EVENT" help:"What is sent: run.done, approval.asked or update.posted. May be repeated. Default: run.done."`
	All   bool     `help:"Of all conversations, not only of messages that name it."`
}

func (*hubWebhooksSetCmd) Help() string {
	return `What is sent is signed by the Standard Webhooks scheme with the secret.

Examples:

	nightporter hub webhooks set inbox https://inbox.example.com/replies --all >inbox.secret`
}

func (c *hubWebhooksSetCmd) Run(a *app) error {
	hub, err := c.client(a)
	if err != nil {
		return err
	}
	var w client.Webhook
	if err := hub.Put(context.Background(), "/v1/webhooks/"+url.PathEscape(c.Name), client.Webhook{Name: c.Name, URL: c.URL, Events: c.Event, All: c.All}, &w); err != nil {
		return err
	}
	if w.Secret != "" {
		_, err = fmt.Fprintln(a.stdout, w.Secret)
	}
	return err
}

type hubWebhooksRemoveCmd struct {
	hubFlags
	Name string `arg:""`
}

func (*hubWebhooksRemoveCmd) Help() string {
	return "Examples:\n\n\tnightporter hub webhooks remove inbox"
}

func (c *hubWebhooksRemoveCmd) Run(a *app) error {
	return deleted(a, c.hubFlags, "/v1/webhooks/", c.Name)
}
