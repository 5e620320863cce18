//! Credentials of one kind where another kind is expected: users of the broker, devices, users of tenants, users of the
//! console, and keys of the API.

use std::sync::OnceLock;

use serde_json::{Value as Json, json};

use super::access_control::PASSWORDS;
use crate::devices::rest::Rest;
use crate::support::api::Api;
use crate::support::http::request;
use crate::support::*;

/// Access token of a device.
const TOKEN: &str = "CONFUSED-DEVICE-TOKEN";

/// A server with a credential of each kind.
struct World {
    server: Server,
    console_password: String,
    console_token: String,
    api_key: String,
    tenant_token: String,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let toml = "[access]\nanonymous = \"never\"\nmax_login_failures = 0\npassword_file = \"{dir}/users\"\n\
                    [platform]\nenabled = true\ndemo = true\n";
        let server = Server::start(&Config::new(toml).file("users", PASSWORDS));
        let tenant = Rest::login(&server);
        tenant.device("confused", TOKEN);
        let password = std::fs::read_to_string(server.dir().join("data/admin-password")).expect("a password");
        let login = json!({"user": "admin", "password": password.trim()}).to_string();
        let (status, answer) = request(server.http(), "POST", "/api/v1/login", "", &login);
        assert_eq!(status, 200, "{answer}");
        let answer: Json = serde_json::from_str(&answer).expect("JSON");
        let key = Api::of(&server).ok(
            "POST",
            "/api/v1/api-keys",
            &json!({"name": "confused", "role": "admin"}),
        );
        World {
            console_password: password.trim().to_owned(),
            console_token: answer["token"].as_str().expect("a token").to_owned(),
            api_key: key["secret"].as_str().unwrap_or_else(|| panic!("{key}")).to_owned(),
            tenant_token: tenant.token().to_owned(),
            server,
        }
    })
}

impl World {
    fn status(&self, path: &str, headers: &str) -> u16 {
        request(self.server.http(), "GET", path, headers, "").0
    }

    fn mqtt(&self, connect: &Connect) -> u8 {
        self.server.connect().handshake(connect).code
    }
}

#[test]
fn each_kind_of_login_knows_its_own_users_only() {
    let world = world();
    let login = |path: &str, body: &Json| request(world.server.http(), "POST", path, "", &body.to_string()).0;
    let console = |user: &str, password: &str| login("/api/v1/login", &json!({"user": user, "password": password}));
    let tenant =
        |user: &str, password: &str| login("/api/auth/login", &json!({"username": user, "password": password}));
    assert_eq!(console("alice", "secret"), 401, "a user of the broker at the console");
    assert_eq!(
        console("tenant@thingsboard.org", "tenant"),
        401,
        "a user of a tenant at the console"
    );
    assert_eq!(console(TOKEN, ""), 401, "a device at the console");
    assert_eq!(
        console("admin", &world.api_key),
        401,
        "a key as password of the console"
    );
    assert_eq!(
        console("admin", &world.console_token),
        401,
        "a token as password of the console"
    );
    assert_eq!(tenant("alice", "secret"), 401, "a user of the broker at the platform");
    assert_eq!(tenant(TOKEN, TOKEN), 401, "a device at the platform");
}

#[test]
fn credentials_of_the_api_do_not_connect_clients() {
    let world = world();
    let secrets = [
        &world.console_password,
        &world.console_token,
        &world.api_key,
        &world.tenant_token,
    ];
    for secret in secrets {
        for name in ["admin", "alice", "tenant@thingsboard.org", "confused"] {
            let connect = Connect::new(V5, unique("confused")).user(name, secret);
            assert!(world.mqtt(&connect) >= 0x80, "{name}");
        }
        for connect in [
            Connect::new(V5, unique("confused")).user_name(secret),
            Connect::new(V5, unique("confused")).password(secret),
        ] {
            assert!(world.mqtt(&connect) >= 0x80);
        }
    }
    let tenant = Connect::new(V5, unique("confused")).user("tenant@thingsboard.org", "tenant");
    assert!(world.mqtt(&tenant) >= 0x80, "a user of a tenant");
    let alice = Connect::new(V5, unique("confused")).user("alice", "secret");
    assert_eq!(world.mqtt(&alice), 0);
}

#[test]
fn device_tokens_are_user_names_only() {
    let world = world();
    let id = || unique("confused");
    for (attack, connect) in [
        ("as password", Connect::new(V5, id()).user("confused", TOKEN)),
        ("as password without a name", Connect::new(V5, id()).password(TOKEN)),
        ("as client id", Connect::new(V5, TOKEN)),
        ("in lower case", Connect::new(V5, id()).user_name(TOKEN.to_lowercase())),
        ("as a prefix", Connect::new(V5, id()).user_name(format!("{TOKEN}-2"))),
        ("a part", Connect::new(V5, id()).user_name(&TOKEN[1..])),
        ("a pattern", Connect::new(V5, id()).user_name("CONFUSED%")),
        ("SQL", Connect::new(V5, id()).user_name("' OR '1'='1")),
        ("the name of the device", Connect::new(V5, id()).user_name("confused")),
    ] {
        assert!(world.mqtt(&connect) >= 0x80, "{attack}");
    }
    for scheme in [
        "Authorization: Bearer",
        "X-Authorization: Bearer",
        "X-Authorization: ApiKey",
    ] {
        let header = format!("{scheme} {TOKEN}\r\n");
        assert_eq!(world.status("/api/v1/users", &header), 401, "{scheme}");
        assert_eq!(world.status("/api/auth/user", &header), 401, "{scheme}");
    }
    assert_eq!(world.mqtt(&Connect::new(V5, id()).user_name(TOKEN)), 0);
}

#[test]
fn users_cannot_take_the_session_of_a_device() {
    let world = world();
    let mut device = world
        .server
        .session(&Connect::new(V5, unique("confused")).user_name(TOKEN));
    for client_id in ["$device/x", "$device/", "$provision/x"] {
        let connect = Connect::new(V5, client_id).user("alice", "secret");
        assert_eq!(world.mqtt(&connect), 0x85, "{client_id}");
    }
    device.ping_alone();
}

#[test]
fn tokens_of_one_api_are_unknown_in_the_other() {
    let world = world();
    let ours = "/api/v1/users";
    let platform = "/api/auth/user";
    for header in ["Authorization", "X-Authorization"] {
        for scheme in ["Bearer", "bearer", "ApiKey", "Basic"] {
            let with = |token: &str| format!("{header}: {scheme} {token}\r\n");
            assert_eq!(world.status(ours, &with(&world.tenant_token)), 401, "{header} {scheme}");
            for token in [&world.console_token, &world.api_key] {
                assert_eq!(world.status(platform, &with(token)), 401, "{header} {scheme}");
            }
        }
    }
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    assert_eq!(world.status(ours, &bearer(&world.console_token)), 200);
    assert_eq!(world.status(ours, &bearer(&world.api_key)), 200);
    assert_eq!(world.status(platform, &bearer(&world.tenant_token)), 200);
}

#[test]
fn administrator_of_a_namespace_is_no_other_administrator() {
    let world = world();
    let api = Api::of(&world.server);
    let role = "ns:acme::admin";
    let made = api.ok("POST", "/api/v1/console-users", &json!({"name": "acme", "role": role}));
    let key = api.ok("POST", "/api/v1/api-keys", &json!({"name": "acme", "role": role}))["secret"].clone();
    let send = |path: &str, token: &str, body: &Json| {
        let header = format!("Authorization: Bearer {token}\r\n");
        let (status, answer) = request(world.server.http(), "POST", path, &header, &body.to_string());
        (status, serde_json::from_str::<Json>(&answer).unwrap_or_default())
    };
    let token = |password: &str| {
        let (status, answer) = send("/api/v1/login", "", &json!({"user": "acme", "password": password}));
        assert_eq!(status, 200, "{answer}");
        answer["token"].as_str().expect("a token").to_owned()
    };
    let (first, own) = (made["password"].as_str().expect("a password"), "the own password");
    let change = json!({"current_password": first, "new_password": own});
    assert_eq!(send("/api/v1/password", &token(first), &change).0, 200);
    let login = json!({"username": "acme", "password": own});
    assert_eq!(send("/api/auth/login", "", &login).0, 401, "at the platform");
    for token in [&*token(own), key.as_str().expect("a secret")] {
        let raised = json!({"name": "raised", "role": role});
        for path in [
            "/api/v1/console-users",
            "/api/v1/api-keys",
            "/api/v1/users",
            "/api/v1/banned",
        ] {
            assert_eq!(send(path, token, &raised).0, 403, "{path}");
        }
        for topic in ["blue/x", "acme", "acmex/x", "$SYS/x", "../acme/x", "acme%2Fx"] {
            let status = send("/api/v1/publish", token, &json!({"topic": topic})).0;
            assert_eq!(status, 403, "{topic}");
        }
        let header = format!("Authorization: Bearer {token}\r\n");
        for path in [
            "/api/v1/retained?filter=%23",
            "/api/v1/retained/blue/x",
            "/api/v1/retained/acme%2F..%2Fblue",
            "/api/v1/retained/../../api/v1/acl",
            "/api/v1/clients/../acl",
            "/api/v1/logs",
        ] {
            let status = world.status(path, &header);
            assert!(matches!(status, 400 | 403 | 404), "{path}: {status}");
        }
        let status = world.status("/api/v1/clients?user_name=alice", &header);
        assert_eq!(status, 200);
    }
}

#[test]
fn other_spellings_of_a_path_need_the_same_login() {
    let world = world();
    for path in [
        "/api/v1/users",
        "/api/v1/users/",
        "/api/v1//users",
        "//api/v1/users",
        "/api/v1/./users",
        "/api/v1/login/../users",
        "/api/v1/%75sers",
        "/api/v1/%2e%2e/v1/users",
        "/API/V1/USERS",
        "/api/v1/users;x=/api/v1/login",
        "/api/v1/users?/api/v1/login",
        "/api/v1/users%00",
        "/api/v1/users#/api/v1/login",
        "/livez/../api/v1/users",
        "/metrics/../api/v1/users",
    ] {
        let (status, body) = request(world.server.http(), "GET", path, "", "");
        assert!(!body.contains("alice"), "{path} {status} {body}");
    }
    for headers in [
        "X-Original-URL: /api/v1/login\r\n",
        "X-Rewrite-URL: /api/v1/login\r\n",
        "X-HTTP-Method-Override: OPTIONS\r\n",
        "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-User: admin\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer null\r\n",
        "Authorization: Bearer undefined\r\n",
        "Cookie: token=admin\r\n",
    ] {
        assert_eq!(world.status("/api/v1/users", headers), 401, "{headers}");
    }
    assert_eq!(request(world.server.http(), "HEAD", "/api/v1/users", "", "").0, 401);
}
