// A tenant of the device platform, controlled over ThingsBoard's REST interface in parallel to the browser.
import type { Node } from "./node";

interface Id { entityType: string; id: string }
interface Answer { id: Id; [other: string]: unknown }

export class Platform {
  private constructor(private node: Node, private token: string) {}

  /** Opens a tenant by title and creates it if needed. */
  static async open(node: Node, title: string): Promise<Platform> {
    const admin = await json(`${node.url}/api/auth/login`, "POST", "", { username: "admin", password: node.firstPassword }) as { token: string };
    const tenants = await json(`${node.url}/api/tenants?page=0&pageSize=100`, "GET", admin.token) as { data: (Answer & { title: string })[] };
    const tenant = tenants.data.find((one) => one.title === title) ?? await json(`${node.url}/api/tenant`, "POST", admin.token, { title }) as Answer;
    const user = await json(`${node.url}/api/user`, "POST", admin.token, { email: `${crypto.randomUUID()}@example.com`, authority: "TENANT_ADMIN", tenantId: tenant.id }) as Answer;
    const link = await (await fetch(`${node.url}/api/user/${user.id.id}/activationLink`, { headers: { "X-Authorization": `Bearer ${admin.token}` } })).text();
    const activateToken = new URL(link).searchParams.get("activateToken");
    const own = await json(`${node.url}/api/noauth/activate`, "POST", "", { activateToken, password: "a password" }) as { token: string };
    return new Platform(node, own.token);
  }

  call(method: string, path: string, body?: unknown): Promise<unknown> {
    return json(this.node.url + path, method, this.token, body);
  }

  /** Returns a body that is not JSON. */
  async text(path: string): Promise<string> {
    return (await fetch(this.node.url + path, { headers: { "X-Authorization": `Bearer ${this.token}` } })).text();
  }

  /** Creates a device whose token is its name. */
  async device(name: string): Promise<string> {
    const body = { device: { name }, credentials: { credentialsType: "ACCESS_TOKEN", credentialsId: name } };
    return ((await this.call("POST", "/api/device-with-credentials", body)) as Answer).id.id;
  }
}

async function json(url: string, method: string, token: string, body?: unknown): Promise<unknown> {
  const headers: Record<string, string> = { "Content-Type": "application/json", ...(token ? { "X-Authorization": `Bearer ${token}` } : {}) };
  const answer = await fetch(url, { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${url}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : undefined;
}
