package wire

import "encoding/json"

// Protocol revisions. Those before Modern open a session by initialize; from Modern on each
// request stands for itself and servers answer server/discover (facts/mcp.md, section 1.1).
const (
	Modern = "2026-07-28"
	Latest = "2025-11-25" // newest revision of the session era
)

// SessionVersions are the revisions of the session era that we speak, newest first.
var SessionVersions = []string{Latest, "2025-06-18", "2025-03-26", "2024-11-05"}

// Versions are all revisions that we speak, newest first.
func Versions() []string { return append([]string{Modern}, SessionVersions...) }

// Era tells the two ways of speaking MCP apart.
type Era string

const (
	SessionEra   Era = "session"   // 2024-11-05 to 2025-11-25
	StatelessEra Era = "stateless" // 2026-07-28
)

// EraOf returns the era of a protocol revision. Revisions are dates, so that they compare as text.
func EraOf(version string) Era {
	if version >= Modern {
		return StatelessEra
	}
	return SessionEra
}

// Members of params._meta and result._meta from 2026-07-28 on.
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaClientInfo   = "io.modelcontextprotocol/clientInfo"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaServerInfo   = "io.modelcontextprotocol/serverInfo"
	MetaLogLevel     = "io.modelcontextprotocol/logLevel"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
	MetaTask         = "io.modelcontextprotocol/related-task" // 2025-11-25
)

// ExtensionTasks is the extension, in capabilities.extensions, by which servers of the stateless era may answer with tasks.
const ExtensionTasks = "io.modelcontextprotocol/tasks"

// Methods and notifications that routing looks at.
const (
	Initialize     = "initialize"
	Discover       = "server/discover"
	Ping           = "ping"
	ToolsList      = "tools/list"
	ToolsCall      = "tools/call"
	PromptsList    = "prompts/list"
	PromptsGet     = "prompts/get"
	ResourcesList  = "resources/list"
	TemplatesList  = "resources/templates/list"
	ResourcesRead  = "resources/read"
	Subscribe      = "resources/subscribe"
	Unsubscribe    = "resources/unsubscribe"
	Listen         = "subscriptions/listen"
	Complete       = "completion/complete"
	SetLevel       = "logging/setLevel"
	ElicitCreate   = "elicitation/create"
	SamplingCreate = "sampling/createMessage"
	RootsList      = "roots/list"
	TasksGet       = "tasks/get"
	TasksCancel    = "tasks/cancel"
	TasksResult    = "tasks/result" // 2025-11-25 alone
	TasksList      = "tasks/list"   // 2025-11-25 alone
	TasksUpdate    = "tasks/update" // of the extension [ExtensionTasks] alone

	Initialized      = "notifications/initialized"
	Cancelled        = "notifications/cancelled"
	Progress         = "notifications/progress"
	LogMessage       = "notifications/message"
	ToolsChanged     = "notifications/tools/list_changed"
	PromptsChanged   = "notifications/prompts/list_changed"
	ResourcesChanged = "notifications/resources/list_changed"
	ResourceUpdated  = "notifications/resources/updated"
	RootsChanged     = "notifications/roots/list_changed"
	TaskStatus       = "notifications/tasks/status" // 2025-11-25
	TaskChanged      = "notifications/tasks"        // of the extension [ExtensionTasks]
	ListenAck        = "notifications/subscriptions/acknowledged"
)

// NameKey is the member of a method's params that names what it acts on, which is also
// the value of the Mcp-Name header; empty for other methods.
func NameKey(method string) string {
	switch method {
	case ToolsCall, PromptsGet:
		return "name"
	case ResourcesRead, Subscribe, Unsubscribe:
		return "uri"
	case TasksGet, TasksCancel, TasksUpdate:
		return "taskId"
	}
	return ""
}

// Client is what a client says of itself: in initialize, or from 2026-07-28 on with every request.
type Client struct {
	Version      string          // protocol revision
	Capabilities json.RawMessage // an object
	Info         json.RawMessage // name, version, …; may be nil
}

// ClientOf reads what a 2026-07-28 request says of its client. ok is false when
// the request has no protocol version in its _meta.
func ClientOf(params json.RawMessage) (c Client, ok bool) {
	meta := Get(params, "_meta")
	c.Version, ok = GetString(meta, MetaVersion)
	c.Capabilities = Get(meta, MetaCapabilities)
	c.Info = Get(meta, MetaClientInfo)
	return c, ok
}

// WithClient returns params with the _meta members that a 2026-07-28 request must have.
func WithClient(params json.RawMessage, c Client) json.RawMessage {
	capabilities := c.Capabilities
	if capabilities == nil {
		capabilities = json.RawMessage("{}")
	}
	params = Set(params, Quote(Modern), "_meta", MetaVersion)
	params = Set(params, capabilities, "_meta", MetaCapabilities)
	if c.Info != nil {
		params = Set(params, c.Info, "_meta", MetaClientInfo)
	}
	return params
}

// WithoutClient returns params without those members, for a server of the session era.
func WithoutClient(params json.RawMessage) json.RawMessage {
	meta := Get(params, "_meta")
	if meta == nil {
		return params
	}
	for _, key := range []string{MetaVersion, MetaCapabilities, MetaClientInfo, MetaLogLevel} {
		meta = Set(meta, nil, key)
	}
	if members, err := Members(meta); err == nil && len(members) == 0 {
		return Set(params, nil, "_meta")
	}
	return Set(params, meta, "_meta")
}
