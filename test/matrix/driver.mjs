// One client of the official TypeScript SDK, v1 or v2, goes through everything that a client does, and prints what came of each as one
// JSON object: "yes", or why not. Use: node driver.mjs OPTIONS, with OPTIONS as JSON:
//
//	{"modules": PATH of node_modules, "sdk": "v1" | "v2", "version": protocol revision, "servers": […],
//	 "command": [PROGRAM, ARG…] | "url": URL, "token": TOKEN}
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

const options = JSON.parse(process.argv[2])
const load = (path) => import(pathToFileURL(join(options.modules, '@modelcontextprotocol', path)))

const capabilities = { elicitation: { form: {} }, sampling: {}, roots: {} }
const info = { name: 'typescript-sdk', version: options.sdk }
let changed = () => {}

async function v1() {
  const { Client } = await load('sdk/dist/esm/client/index.js')
  const { StdioClientTransport } = await load('sdk/dist/esm/client/stdio.js')
  const { StreamableHTTPClientTransport } = await load('sdk/dist/esm/client/streamableHttp.js')
  const types = await load('sdk/dist/esm/types.js')
  const client = new Client(info, { capabilities })
  const schemas = { 'elicitation/create': types.ElicitRequestSchema, 'sampling/createMessage': types.CreateMessageRequestSchema }
  for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(schemas[method], answer)
  client.setNotificationHandler(types.ToolListChangedNotificationSchema, async () => changed((await client.listTools()).tools))
  const call = (params, how) => client.callTool(params, undefined, how)
  return { client, call, StdioClientTransport, StreamableHTTPClientTransport }
}

async function v2() {
  const { Client, StreamableHTTPClientTransport } = await load('client/dist/index.mjs')
  const { StdioClientTransport } = await load('client/dist/stdio.mjs')
  const client = new Client(info, {
    capabilities,
    versionNegotiation: { mode: options.version >= '2026' ? { pin: options.version } : 'legacy' },
    listChanged: { tools: { onChanged: (error, tools) => error || changed(tools) } },
  })
  for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, answer)
  return { client, call: (params, how) => client.callTool(params, how), StdioClientTransport, StreamableHTTPClientTransport }
}

const answers = {
  'elicitation/create': async () => ({ action: 'accept', content: { name: 'Ada' } }),
  'sampling/createMessage': async () => ({ model: 'm', role: 'assistant', content: { type: 'text', text: 'sampled' } }),
}

const { client, call, StdioClientTransport, StreamableHTTPClientTransport } = await (options.sdk === 'v1' ? v1() : v2())
const transport = options.command
  ? new StdioClientTransport({ command: options.command[0], args: options.command.slice(1), env: process.env })
  : new StreamableHTTPClientTransport(new URL(options.url), { requestInit: { headers: { Authorization: 'Bearer ' + options.token } } })
await client.connect(transport)

const say = (server, tool, args, how) => call({ name: server + '__' + tool, arguments: args }, how)
const want = (got, text) => {
  const all = JSON.stringify(got)
  if (!all.includes(text)) throw new Error(`want ${text} in ${all.slice(0, 500)}`)
}

// Each is done with every server.
const features = {
  list: async (server) => want(await client.listTools(), server + '__echo'),
  call: async (server) => want(await say(server, 'echo', { message: 'hi' }), server + ': '),
  progress: async (server) => {
    let steps = 0
    await say(server, 'sleep', { for: '300ms', progress: '20ms' }, { onprogress: () => steps++ })
    if (steps === 0) throw new Error('no progress came')
  },
  cancel: async (server) => { // that the server was told is the test's to check
    const abort = new AbortController()
    await say(server, 'sleep', { for: '60s', progress: '20ms' }, { signal: abort.signal, onprogress: () => abort.abort() }).then(
      () => { throw new Error('it was answered') },
      (error) => { if (!abort.signal.aborted) throw error },
    )
  },
  elicitation: async (server) => want(await say(server, 'elicit', {}), 'Ada'),
  sampling: async (server) => want(await say(server, 'sample', {}), 'sampled'),
  resources: async (server) => {
    want(await client.listResources(), 'lab://' + server)
    want(await client.readResource({ uri: 'lab://' + server }), 'resource lab://' + server)
  },
  prompts: async (server) => {
    want(await client.listPrompts(), server + '__greet')
    want(await client.getPrompt({ name: server + '__greet', arguments: {} }), 'prompt greet')
  },
  list_changed: async (server) => {
    const name = server + '__late'
    const news = new Promise((resolve) => { changed = (tools) => tools.some((tool) => tool.name === name) && resolve() })
    await say(server, 'addtool', { name: 'late' })
    const patience = new Promise((_, reject) => setTimeout(() => reject(new Error('it was not told')), 20000).unref())
    await Promise.race([news, patience])
  },
}

const results = {}
for (const [feature, run] of Object.entries(features)) {
  try {
    for (const server of options.servers) await run(server)
    results[feature] = 'yes'
  } catch (error) {
    results[feature] = String(error?.message ?? error)
  }
}
console.log(JSON.stringify(results))
await client.close()
process.exit(0)
