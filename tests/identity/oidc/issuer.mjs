// An OpenID Connect issuer on a free port of loopback. Every line on stdin is a key set with private keys: the first
// starts the issuer, each further one replaces its keys. Every key set is answered with the issuer's address.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const library = pathToFileURL(`${process.argv[2]}/node_modules/oidc-provider/lib/index.js`);
const { default: Provider } = await import(library);

const server = createServer((request, response) => handle(request, response));
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
let handle;

const settings = (jwks) => ({
  jwks,
  clients: [
    {
      client_id: "release-bot",
      client_secret: "a-secret-for-tests",
      grant_types: ["client_credentials"],
      redirect_uris: [],
      response_types: [],
    },
  ],
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_context, resource) => ({
        audience: resource,
        scope: "",
        accessTokenTTL: 300,
        accessTokenFormat: "jwt",
        jwt: { sign: { alg: resource.endsWith("/es") ? "ES256" : "RS256" } },
      }),
    },
  },
  extraTokenClaims: () => ({ groups: ["eng-all", "unlisted"], tenant: "acme" }),
});

for await (const line of createInterface({ input: process.stdin })) {
  handle = new Provider(issuer, settings(JSON.parse(line))).callback();
  process.stdout.write(`issuer ${issuer}\n`);
}
process.exit(0);
