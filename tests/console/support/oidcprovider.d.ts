// The parts of `oidc-provider` that the tests use. The package has no types.
declare module "oidc-provider" {
  import type { Server } from "node:http";

  interface Account { accountId: string; claims: () => Record<string, unknown> }

  export default class Provider {
    constructor(issuer: string, settings: { clients: Record<string, unknown>[]; claims: Record<string, string[]>; findAccount: (context: unknown, id: string) => Account });
    listen(port: number, host: string): Server;
  }
}
