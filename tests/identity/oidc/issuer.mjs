// An OpenID Connect issuer on a free port of loopback. Every line on stdin is a key set with private keys: the first
// starts the issuer, each further one replaces its keys. Every key set is answered with the issuer's address.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const library = pathToFileURL(`${process.argv[2]}/node_modules/oidc-provider/lib/index.js`);
const { default: Provider } = await import(library);
const { importJWK, jwtVerify } = await import(pathToFileURL(`${process.argv[2]}/node_modules/jose/dist/webapi/index.js`));

const server = createServer((request, response) => handle(request, response));
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
let handle;

const EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange";
const RESOURCE = (_context, resource) => ({
  audience: resource,
  scope: "",
  accessTokenTTL: 300,
  accessTokenFormat: "jwt",
  jwt: { sign: { alg: resource.endsWith("/es") ? "ES256" : "RS256" } },
});

// RFC 8693: a token for whoever a client that is trusted with this says it is, under the key given as the third argument.
const exchange = (provider) => async (context) => {
  const { subject_token, resource } = context.oidc.params;
  const asserted = await importJWK(JSON.parse(process.argv[3]), "RS256");
  let payload;
  try {
    ({ payload } = await jwtVerify(subject_token, asserted, { issuer: "https://gateway.example.com", audience: `${issuer}/token` }));
  } catch {
    context.status = 400;
    context.body = { error: "invalid_grant" };
    return;
  }
  const token = new provider.AccessToken({ accountId: payload.sub, client: context.oidc.client, gty: "token-exchange" });
  token.resourceServer = new provider.ResourceServer(resource, RESOURCE(context, resource));
  context.body = {
    access_token: await token.save(),
    issued_token_type: "urn:ietf:params:oauth:token-type:access_token",
    token_type: "Bearer",
    expires_in: token.expiration,
  };
};

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
    {
      client_id: "gateway",
      client_secret: "another-secret",
      grant_types: ["client_credentials", ...(process.argv[3] ? [EXCHANGE] : [])],
      redirect_uris: [],
      response_types: [],
    },
  ],
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: RESOURCE,
    },
  },
  extraTokenClaims: () => ({ groups: ["eng-all", "unlisted"], tenant: "acme" }),
});

for await (const line of createInterface({ input: process.stdin })) {
  const provider = new Provider(issuer, settings(JSON.parse(line)));
  if (process.argv[3]) {
    provider.registerGrantType(EXCHANGE, exchange(provider), ["subject_token", "subject_token_type", "requested_token_type", "resource"]);
  }
  handle = provider.callback();
  process.stdout.write(`issuer ${issuer}\n`);
}
process.exit(0);
