// One client of the TypeScript SDKs goes through everything once and prints what it saw as one line of JSON.
// usage: client.mjs sdk|client legacy|auto|2026-07-28 URL TOKEN

const [library, mode, url, token] = process.argv.slice(2)

const { Client, StreamableHTTPClientTransport } =
  library === 'sdk'
    ? {
        ...(await import('@modelcontextprotocol/sdk/client/index.js')),
        ...(await import('@modelcontextprotocol/sdk/client/streamableHttp.js')),
      }
    : await import('@modelcontextprotocol/client')

const negotiation = mode === 'legacy' ? {} : { versionNegotiation: { mode: mode === 'auto' ? 'auto' : { pin: mode } } }
const client = new Client({ name: 'tests', version: '0' }, negotiation)
const transport = new StreamableHTTPClientTransport(new URL(url), {
  requestInit: { headers: { authorization: `Bearer ${token}` } },
})
await client.connect(transport)

const steps = []
const call = (name, args = {}, options = {}, meta = undefined) => {
  const params = { name, arguments: args, ...(meta ? { _meta: meta } : {}) }
  return library === 'sdk' ? client.callTool(params, undefined, options) : client.callTool(params, options)
}
const { tools } = await client.listTools()
const said = await call('say', { text: 'hello' })
const broken = await call('broken')
const walked = await call('steps', {}, { onprogress: (step) => steps.push(step.progress) })
const report = await call('report', { lines: 3 })
const turn = report._meta['gateway/turn']
const grep = await call(
  'artifact_grep',
  { callId: report._meta['gateway/call'], pattern: '1' },
  {},
  { 'gateway/turn': turn },
)
let unknown = null
try {
  await call('nothing')
} catch (error) {
  unknown = error.message
}
await client.close()

console.log(
  JSON.stringify({
    tools: tools.map((tool) => tool.name),
    said: said.content[0].text,
    broken: [broken.isError, broken.content[0].text],
    walked: walked.content[0].text,
    steps,
    link: report.content[1].type,
    grep: grep.content[0].text,
    unknown,
  }),
)
