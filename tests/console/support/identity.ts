// A real OpenID Connect provider, whose login page accepts each name with any password.
import { once } from "node:events";
import type { Server } from "node:http";
import type { Page } from "@playwright/test";
import Provider from "oidc-provider";
import { freePort, Node } from "./node";

const CLIENT = { client_id: "tidewire", client_secret: "a-secret-of-the-tests" };

export class IdentityProvider {
  private server: Server | undefined;

  private constructor(private port: number) {}

  /** Returns a provider that does not listen yet, and a node that uses it. `roles` are the roles of users by name. */
  static async withNode(): Promise<{ provider: IdentityProvider; node: Node }> {
    const provider = new IdentityProvider(await freePort());
    const node = await Node.start(`api.oidc.issuer=${provider.issuer}`, `api.oidc.client_id=${CLIENT.client_id}`, `api.oidc.client_secret=${CLIENT.client_secret}`, "api.oidc.external_url={url}", "api.oidc.label=Plant SSO", "api.oidc.roles.owners=admin", "api.oidc.roles.watchers=viewer");
    return { provider, node };
  }

  get issuer(): string {
    // Another site than the console, so that the attributes of cookies matter.
    return `http://localhost:${this.port}`;
  }

  /** `roles`: the roles of users by name. */
  async come(node: Node, roles: Record<string, string[]>): Promise<void> {
    const provider = new Provider(this.issuer, {
      clients: [{ ...CLIENT, redirect_uris: [`${node.url}/api/v1/oidc/callback`] }],
      claims: { openid: ["sub"], profile: ["preferred_username", "roles"] },
      findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id, roles: roles[id] ?? [] }) }),
    });
    this.server = provider.listen(this.port, "127.0.0.1");
    await once(this.server, "listening");
  }

  /** Fills in the login page of the provider, and consents. */
  async logIn(page: Page, name: string): Promise<void> {
    await page.getByPlaceholder("Enter any login").fill(name);
    await page.getByPlaceholder("and password").fill("any password");
    await page.getByRole("button", { name: "Sign-in", exact: true }).click();
    await page.getByRole("button", { name: "Continue", exact: true }).click();
  }

  async stop(): Promise<void> {
    const { server } = this;
    if (!server?.listening) return;
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
}
