//! Tokens and keys after their user was deleted or changed the password, and stolen refresh tokens.

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::support::api::Api;
use crate::support::http::request;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
const PASSWORD: &str = "correct horse battery";

struct Attack {
    server: Server,
    tenant: Rest,
    /// The ID of the demo customer's user.
    customer: String,
}

impl Attack {
    fn start() -> Attack {
        let server = Server::start(&Config::new(CONFIG));
        let tenant = Rest::login(&server);
        let me = Rest::login_as(&server, "customer").ok("GET", "/api/auth/user", &Json::Null);
        Attack {
            server,
            tenant,
            customer: id_of(&me),
        }
    }

    /// Creates another administrator of the tenant and logs in. Returns the ID, too.
    fn another_administrator(&self, email: &str) -> (Rest, String) {
        let user = json!({"authority": "TENANT_ADMIN", "email": email});
        let user = id_of(&self.tenant.ok("POST", "/api/user?sendActivationMail=false", &user));
        let (status, link) = self.tenant.raw("GET", &format!("/api/user/{user}/activationLink"), "");
        assert_eq!(status, 200, "{link}");
        let (_, token) = link.split_once("activateToken=").expect("a link with a token");
        let body = json!({"activateToken": token, "password": PASSWORD});
        let pair = self.tenant.ok("POST", "/api/noauth/activate", &body);
        (self.with(&pair, "token"), user)
    }

    fn with(&self, pair: &Json, token: &str) -> Rest {
        Rest::with_token(&self.server, pair[token].as_str().expect("a token"))
    }

    fn refresh(&self, pair: &Json) -> (u16, Json) {
        let body = json!({"refreshToken": pair["refreshToken"]});
        self.tenant.call("POST", "/api/auth/token", &body)
    }

    fn with_key(&self, key: &Json, method: &str, path: &str, body: &str) -> (u16, Json) {
        let key = key["value"].as_str().expect("the value of the key");
        let headers = format!("X-Authorization: ApiKey {key}\r\n");
        let (status, text) = request(self.server.http(), method, path, &headers, body);
        (status, serde_json::from_str(&text).unwrap_or(Json::Null))
    }
}

fn id_of(entity: &Json) -> String {
    entity["id"]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{entity}"))
        .to_owned()
}

fn key_for(user: &str) -> Json {
    json!({"userId": {"entityType": "USER", "id": user}, "description": "attack"})
}

fn me(rest: &Rest) -> u16 {
    rest.call("GET", "/api/auth/user", &Json::Null).0
}

#[test]
fn tokens_of_another_user_end_with_their_issuer() {
    let attack = Attack::start();
    let (mallory, id) = attack.another_administrator("mallory@acme.org");
    let pair = mallory.ok("GET", &format!("/api/user/{}/token", attack.customer), &Json::Null);
    let stolen = attack.with(&pair, "token");
    assert_eq!(me(&stolen), 200);
    attack.tenant.ok("DELETE", &format!("/api/user/{id}"), &Json::Null);
    assert_eq!((me(&stolen), attack.refresh(&pair).0), (401, 401));
}

#[test]
fn keys_for_other_users_end_with_their_issuer() {
    let attack = Attack::start();
    let (mallory, id) = attack.another_administrator("mallory@acme.org");
    let key = mallory.ok("POST", "/api/apiKey", &key_for(&attack.customer));
    // A key that was created with the key has the same issuer.
    let (status, second) = attack.with_key(&key, "POST", "/api/apiKey", &key_for(&attack.customer).to_string());
    assert_eq!(status, 200, "{second}");
    let me = |key: &Json| attack.with_key(key, "GET", "/api/auth/user", "").0;
    assert_eq!((me(&key), me(&second)), (200, 200));
    let (_, mut user) = attack.with_key(&key, "GET", "/api/auth/user", "");
    user["firstName"] = json!("Ada");
    let (status, saved) = attack.with_key(&key, "POST", "/api/user", &user.to_string());
    assert_eq!(status, 200, "{saved}");
    let logs = "/api/audit/logs?pageSize=100&page=0";
    let logs = attack.tenant.ok("GET", logs, &Json::Null).to_string();
    assert!(logs.contains("customer@thingsboard.org, by mallory@acme.org"), "{logs}");
    attack.tenant.ok("DELETE", &format!("/api/user/{id}"), &Json::Null);
    assert_eq!((me(&key), me(&second)), (401, 401));
}

#[test]
fn administrator_cannot_create_a_key_for_an_equal() {
    let attack = Attack::start();
    let (mallory, id) = attack.another_administrator("mallory@acme.org");
    let equal = id_of(&attack.tenant.ok("GET", "/api/auth/user", &Json::Null));
    assert_eq!(mallory.call("POST", "/api/apiKey", &key_for(&equal)).0, 403);
    mallory.ok("POST", "/api/apiKey", &key_for(&id));
}

#[test]
fn refresh_token_that_is_used_twice_ends_the_login() {
    let attack = Attack::start();
    let login = json!({"username": "customer@thingsboard.org", "password": "customer"});
    let first = attack.tenant.ok("POST", "/api/auth/login", &login);
    let (status, second) = attack.refresh(&first);
    assert_eq!(status, 200, "{second}");
    let (status, third) = attack.refresh(&second);
    assert_eq!(status, 200, "{third}");
    assert_eq!(me(&attack.with(&third, "token")), 200);
    assert_eq!(attack.refresh(&first).0, 401);
    // The owner of the login and the thief have to log in again.
    assert_eq!(attack.refresh(&third).0, 401);
    assert_eq!(me(&attack.with(&third, "token")), 401);
    attack.tenant.ok("POST", "/api/auth/login", &login);
}

#[test]
fn password_change_lists_api_keys() {
    let attack = Attack::start();
    let (mallory, id) = attack.another_administrator("mallory@acme.org");
    for user in [&id, &attack.customer] {
        mallory.ok("POST", "/api/apiKey", &key_for(user));
    }
    let change = json!({"currentPassword": PASSWORD, "newPassword": "a better password"});
    let answer = mallory.ok("POST", "/api/auth/changePassword", &change);
    let keys = answer["apiKeys"].as_array().expect("a list of keys");
    let mut users: Vec<&str> = keys.iter().filter_map(|key| key["userId"]["id"].as_str()).collect();
    users.sort_unstable();
    let mut expected = [id.as_str(), attack.customer.as_str()];
    expected.sort_unstable();
    assert_eq!(users, expected, "{answer}");
    assert!(!answer.to_string().contains("valueHash"));
}

#[test]
fn keys_of_a_deleted_console_user_end() {
    let server = Server::start(&Config::default());
    let admin = Api::of(&server);
    let bob = json!({"name": "bob", "role": "admin"});
    let password = admin.ok("POST", "/api/v1/console-users", &bob)["password"].clone();
    let http = |path: &str, token: &str, body: Json| {
        let headers = format!("Authorization: Bearer {token}\r\n");
        let method = if body.is_null() { "GET" } else { "POST" };
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (status, text) = request(server.http(), method, path, &headers, &body);
        (status, serde_json::from_str::<Json>(&text).unwrap_or(Json::Null))
    };
    let login = |password: &Json| {
        let login = json!({"user": "bob", "password": password}).to_string();
        let (_, text) = request(server.http(), "POST", "/api/v1/login", "", &login);
        let answer: Json = serde_json::from_str(&text).expect("JSON");
        answer["token"].as_str().expect("a token").to_owned()
    };
    let change = json!({"current_password": password, "new_password": PASSWORD});
    http("/api/v1/password", &login(&password), change);
    let token = login(&json!(PASSWORD));
    let (status, key) = http("/api/v1/api-keys", &token, json!({"name": "bobs", "role": "admin"}));
    assert_eq!(status, 201, "{key}");
    let secret = key["secret"].as_str().expect("a secret").to_owned();
    // A key that was created with the key has the same issuer.
    let (_, second) = http("/api/v1/api-keys", &secret, json!({"name": "second", "role": "admin"}));
    let second = second["secret"].as_str().expect("a secret").to_owned();
    let status = |secret: &str| http("/api/v1/console-users", secret, Json::Null).0;
    assert_eq!((status(&secret), status(&second)), (200, 200));
    // A key has at most the role of its issuer.
    admin.ok("PUT", "/api/v1/console-users/bob", &json!({"role": "viewer"}));
    assert_eq!((status(&secret), status(&second)), (403, 403));
    admin.ok("DELETE", "/api/v1/console-users/bob", &Json::Null);
    assert_eq!((status(&secret), status(&second)), (401, 401));
    // Another user with the same name does not get the keys.
    admin.ok("POST", "/api/v1/console-users", &bob);
    assert_eq!((status(&secret), status(&second)), (401, 401));
}

#[test]
fn platform_keys_of_a_deleted_console_user_end() {
    let attack = Attack::start();
    let admin = Api::of(&attack.server);
    let bob = json!({"name": "bob", "role": "admin"});
    // Adds the console user and replaces the generated password.
    let add = || {
        let password = admin.ok("POST", "/api/v1/console-users", &bob)["password"].clone();
        let login = json!({"user": "bob", "password": password}).to_string();
        let (_, text) = request(attack.server.http(), "POST", "/api/v1/login", "", &login);
        let answer: Json = serde_json::from_str(&text).expect("JSON");
        let headers = format!(
            "Authorization: Bearer {}\r\n",
            answer["token"].as_str().expect("a token")
        );
        let change = json!({"current_password": password, "new_password": PASSWORD}).to_string();
        request(attack.server.http(), "POST", "/api/v1/password", &headers, &change);
    };
    add();
    let login = json!({"username": "bob", "password": PASSWORD});
    let pair = attack.tenant.ok("POST", "/api/auth/login", &login);
    let user = id_of(&attack.tenant.ok("GET", "/api/auth/user", &Json::Null));
    let taken = attack
        .with(&pair, "token")
        .ok("GET", &format!("/api/user/{user}/token"), &Json::Null);
    let key = attack.with(&taken, "token").ok("POST", "/api/apiKey", &key_for(&user));
    let me = || attack.with_key(&key, "GET", "/api/auth/user", "").0;
    assert_eq!(me(), 200);
    admin.ok("DELETE", "/api/v1/console-users/bob", &Json::Null);
    assert_eq!(me(), 401);
    // Another administrator with the same name does not get the key.
    add();
    assert_eq!(me(), 401);
}

#[test]
fn keys_with_scopes_get_no_more_rights() {
    let server = Server::start(&Config::new(CONFIG));
    let key = json!({"name": "provisioning", "role": "admin", "scopes": ["access_control"]});
    let secret = Api::of(&server).ok("POST", "/api/v1/api-keys", &key)["secret"].clone();
    let headers = format!("Authorization: Bearer {}\r\n", secret.as_str().expect("a secret"));
    let ask = |method: &str, path: &str, body: &Json| {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        request(server.http(), method, path, &headers, &body).0
    };
    assert_eq!(ask("GET", "/api/v1/users", &Json::Null), 200);
    for (method, path, body) in [
        ("POST", "/api/v1/api-keys", json!({"name": "more", "role": "admin"})),
        ("PUT", "/api/v1/api-keys/provisioning", json!({"role": "admin"})),
        (
            "POST",
            "/api/v1/console-users",
            json!({"name": "mallory", "role": "admin"}),
        ),
        ("POST", "/api/v1/console-users/admin/password", Json::Null),
        ("DELETE", "/api/v1/console-users/admin/totp", Json::Null),
        ("POST", "/api/v1/platform-login", Json::Null),
        ("PUT", "/api/v1/configuration", json!({})),
        ("POST", "/api/v1/backups", json!({})),
        ("GET", "/api/v1/audit", Json::Null),
        ("GET", "/api/v1/mqtt", Json::Null),
        ("POST", "/api/v1/publish", json!({"topic": "t", "payload": "x"})),
    ] {
        assert_eq!(ask(method, path, &body), 403, "{method} {path}");
    }
}
