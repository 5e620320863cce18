//! The second factor of console users, and what needs it.

use std::time::{SystemTime, UNIX_EPOCH};

use auth::TotpSecret;
use serde_json::{Value, json};

use super::node::Node;
use super::web::Answer;

const OWN: &str = "/api/v1/totp";

/// An authenticator app. The server accepts a code once, so each use needs one of another period.
struct App {
    secret: TotpSecret,
    start_s: u64,
}

impl App {
    fn new(set_up: &Value) -> App {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        App {
            secret: TotpSecret::of_base32(set_up["secret"].as_str().unwrap()).unwrap(),
            start_s: now.as_secs(),
        }
    }

    /// The code of the time at which the app was created, and the next one. The server accepts both for 30 s and more.
    fn codes(&self) -> [String; 2] {
        [self.start_s, self.start_s + 30].map(|unix_s| self.secret.code_at(unix_s).to_string())
    }
}

struct Account {
    node: Node,
    app: App,
    recovery_codes: Vec<String>,
}

impl Account {
    /// Sets a second factor of `admin` up, with the first of its codes.
    fn new(node: Node) -> Account {
        let set_up = node
            .send("POST", OWN, &json!({ "password": node.password }))
            .ok()
            .json();
        let app = App::new(&set_up);
        let confirmed = node.send("POST", "/api/v1/totp/confirm", &json!({ "code": app.codes()[0] }));
        let confirmed = confirmed.ok().json();
        let codes = confirmed["recovery_codes"].as_array().unwrap().iter();
        Account {
            recovery_codes: codes.map(|code| code.as_str().unwrap().to_owned()).collect(),
            node,
            app,
        }
    }

    fn log_in(&self, code: &str) -> Answer {
        log_in(&self.node, "admin", &self.node.password, code)
    }

    fn prove(&self, target: &str, password: &str, code: &str) -> Answer {
        self.node
            .send("POST", target, &json!({ "password": password, "code": code }))
    }

    fn own(&self) -> Value {
        self.node.get(OWN).ok().json()
    }
}

fn log_in(node: &Node, user: &str, password: &str, code: &str) -> Answer {
    let body = json!({ "user": user, "password": password, "code": code });
    node.send("POST", "/api/v1/login", &body)
}

fn kind(problem: &Value) -> &str {
    let kind = problem["type"].as_str().unwrap();
    kind.strip_prefix("urn:tidewire:problem:").unwrap()
}

#[test]
fn factor_is_set_up_with_password_and_code() {
    let node = Node::start(1).with_login();
    let off = json!({ "is_active": false, "recovery_codes_left": 0, "is_required": false, "is_available": true });
    assert_eq!(node.get(OWN).ok().json(), off);
    let begin = |password: &str| node.send("POST", OWN, &json!({ "password": password }));
    assert_eq!(begin("wrong").problem(422)["field"], "password");
    let confirm = |code: &str| node.send("POST", "/api/v1/totp/confirm", &json!({ "code": code }));
    assert_eq!(kind(&confirm("123456").problem(409)), "totp-not-begun");
    let set_up = begin(&node.password).ok().json();
    let secret = set_up["secret"].as_str().unwrap();
    let uri = format!("otpauth://totp/tidewire:admin%40test-node?secret={secret}&issuer=tidewire");
    assert_eq!(set_up["uri"], uri);
    assert!(set_up["qr_code"]["size"].as_u64().unwrap() > 30);
    assert_eq!(confirm("12345").problem(422)["field"], "code");
    // It has no effect yet.
    node.login("admin", &node.password).ok();
    let codes = App::new(&set_up).codes();
    let recovery = confirm(&codes[0]).ok().json();
    assert_eq!(recovery["recovery_codes"].as_array().unwrap().len(), 10);
    let on = json!({ "is_active": true, "recovery_codes_left": 10, "is_required": false, "is_available": true });
    assert_eq!(node.get(OWN).ok().json(), on, "this login stays");
    assert_eq!(node.all_pages("/api/v1/logins", 10).len(), 1, "other logins end");
    assert_eq!(kind(&begin(&node.password).problem(409)), "totp-active");
    assert_eq!(node.all_pages("/api/v1/console-users", 10)[0]["has_totp"], true);
}

#[test]
fn login_needs_the_password_and_a_code() {
    let account = Account::new(Node::start(1).with_login());
    let (node, codes) = (&account.node, account.app.codes());
    let required = node.login("admin", &node.password);
    assert_eq!(required.header("www-authenticate"), "Bearer");
    assert_eq!(kind(&required.problem(401)), "totp-required");
    // A wrong password gets the same answer with a right code, a wrong one, and without one.
    let wrong = node.login("admin", "wrong").problem(401);
    for code in [codes[1].as_str(), "000000", ""] {
        assert_eq!(log_in(node, "admin", "wrong", code).problem(401), wrong);
    }
    assert_eq!(kind(&account.log_in("12345").problem(401)), "totp-wrong-code");
    assert_eq!(
        account.log_in(&codes[0]).problem(401)["field"],
        "code",
        "the code of the set-up"
    );
    account.log_in(&format!(" {} {}", &codes[1][..3], &codes[1][3..])).ok();
    account.log_in(&codes[1]).problem(401);
    account.log_in(&account.recovery_codes[3]).ok();
    account.log_in(&account.recovery_codes[3]).problem(401);
    assert_eq!(account.own()["recovery_codes_left"], 9);
    let log = json!(node.all_pages("/api/v1/audit", 100)).to_string();
    assert!(log.contains(r#"{"second_factor":"recovery code"}"#), "{log}");
    for secret in [
        &codes[0],
        &codes[1],
        &account.recovery_codes[3],
        &*account.app.secret.to_base32(),
    ] {
        assert!(!log.contains(secret.as_str()), "{secret} in {log}");
    }
}

#[test]
fn wrong_codes_lock_the_address_out() {
    let account = Account::new(Node::with_long_lockout().with_login());
    // The password is known now, which would admit it.
    account.node.login("admin", &account.node.password).problem(401);
    let checked = (0..20).take_while(|_| account.log_in("wrong").status == 401).count();
    assert!((10..20).contains(&checked), "{checked} codes were checked");
    account.log_in(&account.app.codes()[1]).problem(429);
    account.log_in(&account.recovery_codes[0]).problem(429);
    account
        .prove("/api/v1/totp/turn-off", &account.node.password, "wrong")
        .problem(429);
}

#[test]
fn recovery_codes_are_renewed_and_the_factor_is_turned_off_with_both() {
    let account = Account::new(Node::start(1).with_login());
    let (password, codes) = (account.node.password.as_str(), account.app.codes());
    for target in ["/api/v1/totp/recovery-codes", "/api/v1/totp/turn-off"] {
        assert_eq!(
            account.prove(target, "wrong", &codes[1]).problem(422)["field"],
            "password"
        );
        assert_eq!(account.prove(target, password, "wrong").problem(422)["field"], "code");
    }
    let renewed = account
        .prove("/api/v1/totp/recovery-codes", password, &codes[1])
        .ok()
        .json();
    let renewed = renewed["recovery_codes"][0].as_str().unwrap();
    account.log_in(&account.recovery_codes[0]).problem(401);
    let off = account.prove("/api/v1/totp/turn-off", password, renewed);
    assert_eq!(off.status, 204, "{}", off.body);
    assert_eq!(account.own()["is_active"], false, "the login stays");
    account.node.login("admin", password).ok();
    assert_eq!(
        kind(&account.prove("/api/v1/totp/turn-off", password, "1").problem(409)),
        "totp-inactive"
    );
    let log = json!(account.node.all_pages("/api/v1/audit", 100)).to_string();
    for operation in ["confirm_totp", "renew_recovery_codes", "turn_off_totp"] {
        assert!(log.contains(operation), "{operation} in {log}");
    }
    assert!(
        !log.contains(renewed) && !log.contains(password) && !log.contains(&codes[1]),
        "{log}"
    );
}

#[test]
fn administrator_removes_the_factor_of_another_user() {
    let mut account = Account::new(Node::start(1).with_login());
    let node = &account.node;
    let other = node.token_of_new_user("ada", "admin");
    let viewer = node.token_of_new_user("vera", "viewer");
    let remove = |token: &str, user: &str| {
        node.request_as(
            token,
            "DELETE",
            &format!("/api/v1/console-users/{user}/totp"),
            &Value::Null,
        )
    };
    remove(&viewer, "admin").problem(403);
    assert_eq!(kind(&remove(&node.token, "admin").problem(409)), "own-totp");
    remove(&other, "vera").problem(404);
    remove(&other, "missing").problem(404);
    assert_eq!(remove(&other, "admin").status, 204);
    node.get(OWN).problem(401);
    node.login("admin", &node.password).ok();
    account.node.log_in();
    let log = account
        .node
        .all_pages("/api/v1/audit?operation=remove_console_totp", 10);
    let entry = log.iter().find(|entry| entry["status"] == 204).unwrap();
    assert_eq!(
        (&entry["user"], &entry["after"][0]["has_totp"]),
        (&json!("ada"), &json!(false))
    );
}

#[test]
fn required_factor_comes_before_everything_else() {
    let node = Node::start_with(1, |config| config.require_totp = true);
    let login = node.login("admin", &node.password).ok().json();
    assert_eq!(
        (&login["must_set_up_totp"], &login["must_change_password"]),
        (&json!(true), &json!(false))
    );
    let node = node.with_login();
    assert_eq!(kind(&node.get("/api/v1/clients").problem(403)), "totp-set-up-required");
    node.delete("/api/v1/users/x").problem(403);
    node.send("POST", "/api/v1/platform-login", &Value::Null).problem(403);
    assert_eq!(node.get("/api/v1/login").ok().json()["must_set_up_totp"], true);
    let account = Account::new(node);
    account.node.get("/api/v1/clients").ok();
    let node = &account.node;
    let key = node.new_key(&json!({ "name": "deploy", "role": "viewer" }));
    node.request_as(&key, "GET", "/api/v1/clients", &Value::Null).ok();
    let off = node.request_as(&key, "GET", OWN, &Value::Null).ok().json();
    assert_eq!(
        (&off["is_available"], &off["is_active"]),
        (&json!(false), &json!(false))
    );
    node.request_as(&key, "POST", OWN, &json!({ "password": "x" }))
        .problem(403);
    // The one-time password comes first.
    let made = node
        .send(
            "POST",
            "/api/v1/console-users",
            &json!({ "name": "ada", "role": "viewer" }),
        )
        .json();
    let login = node.login("ada", made["password"].as_str().unwrap()).ok().json();
    assert_eq!(
        (&login["must_set_up_totp"], &login["must_change_password"]),
        (&json!(false), &json!(true))
    );
    let token = login["token"].as_str().unwrap();
    assert_eq!(
        kind(
            &node
                .request_as(token, "POST", OWN, &json!({ "password": "x" }))
                .problem(403)
        ),
        "password-change-required"
    );
}

#[test]
fn new_password_differs_from_the_user_name() {
    let node = Node::start(1).with_login();
    let token = node.token_of_new_user("ada-lovelace", "viewer");
    let change = json!({ "current_password": "the password of ada-lovelace", "new_password": "Ada-Lovelace" });
    let refused = node
        .request_as(&token, "POST", "/api/v1/password", &change)
        .problem(422);
    assert_eq!(
        (&refused["field"], &refused["detail"]),
        (&json!("new_password"), &json!("must differ from the user name"))
    );
}
