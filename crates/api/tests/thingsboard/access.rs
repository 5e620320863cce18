//! Authentication and authorization: all rejected cases.

use std::time::{SystemTime, UNIX_EPOCH};

use auth::TotpSecret;
use serde_json::{Value, json};

use super::server::{CUSTOMER, SYSADMIN, Server, TENANT, id, refused};
use super::web::Answer;

#[test]
fn request_without_valid_credentials_is_rejected() {
    let server = Server::start();
    let target = "/api/tenant/devices?pageSize=1&page=0";
    let token = server.token(TENANT);
    let (head, signature) = token.rsplit_once('.').unwrap();
    let changed = format!("Bearer {head}.{}", signature.chars().rev().collect::<String>());
    for wrong in [
        None,
        Some("Bearer"),
        Some("Bearer x"),
        Some("Basic eA=="),
        Some(&*changed),
        Some("ApiKey tb_x"),
    ] {
        assert_eq!(
            refused(&server.send("GET", target, wrong, ""), 401, 10),
            "Authentication failed",
            "{wrong:?}"
        );
    }
    let refresh = server.login(TENANT, "tenant").json()["refreshToken"]
        .as_str()
        .unwrap()
        .to_owned();
    refused(
        &server.send("GET", target, Some(&format!("Bearer {refresh}")), ""),
        401,
        10,
    );
    let body = json!({"refreshToken": token}).to_string();
    refused(&server.send("POST", "/api/auth/token", None, &body), 401, 10);
    for (user, password) in [
        (TENANT, "wrong"),
        ("missing@thingsboard.org", "tenant"),
        ("admin", "wrong"),
        ("", ""),
    ] {
        assert_eq!(
            refused(&server.login(user, password), 401, 10),
            "Invalid username or password"
        );
    }
    refused(&server.send("POST", "/api/auth/login", None, "{"), 400, 31);
    refused(
        &server.send("POST", "/api/auth/login", None, r#"{"username":"a"}"#),
        400,
        31,
    );
}

#[test]
fn administrator_with_a_second_factor_logs_in_through_the_console() {
    let mut server = Server::start();
    let password = server.node.password.clone();
    let user = |server: &Server, token: &Value| {
        let bearer = format!("Bearer {}", token.as_str().unwrap());
        server.send("GET", "/api/auth/user", Some(&bearer), "")
    };
    let by_password = server.login("admin", &password).ok().json();
    user(&server, &by_password["token"]).ok();
    server.node.log_in();
    let of_console = |server: &Server| server.node.send("POST", "/api/v1/platform-login", &Value::Null);
    let token = of_console(&server).ok().json()["token"].clone();
    assert_eq!(user(&server, &token).ok().json()["authority"], "SYS_ADMIN");
    let key = server.node.new_key(&json!({ "name": "deploy", "role": "admin" }));
    server
        .node
        .request_as(&key, "POST", "/api/v1/platform-login", &Value::Null)
        .problem(403);

    let set_up = server
        .node
        .send("POST", "/api/v1/totp", &json!({ "password": password }))
        .ok()
        .json();
    let secret = TotpSecret::of_base32(set_up["secret"].as_str().unwrap()).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let code = secret.code_at(now.as_secs());
    server
        .node
        .send("POST", "/api/v1/totp/confirm", &json!({ "code": *code }))
        .ok();
    // Tokens of logins without a code end.
    refused(&user(&server, &by_password["token"]), 401, 10);
    refused(&user(&server, &token), 401, 10);
    let message = refused(&server.login("admin", &password), 401, 10);
    assert!(message.contains("second factor"), "{message}");
    assert_eq!(
        refused(&server.login("admin", "wrong"), 401, 10),
        "Invalid username or password"
    );
    let token = of_console(&server).ok().json()["token"].clone();
    user(&server, &token).ok();
}

#[test]
fn platform_tokens_end_with_the_console_login() {
    let mut server = Server::start();
    let me = |server: &Server, pair: &Value| {
        let bearer = format!("Bearer {}", pair["token"].as_str().unwrap());
        server.send("GET", "/api/auth/user", Some(&bearer), "")
    };
    let refresh = |server: &Server, pair: &Value| {
        let body = json!({"refreshToken": pair["refreshToken"]}).to_string();
        server.send("POST", "/api/auth/token", None, &body)
    };
    let tenant = server.get("/api/auth/user").ok().json();
    // Each way to end a login, and another login of the user, which stays.
    for way in ["logout", "other logins", "administrator"] {
        server.node.log_in();
        let other = server.node.token.clone();
        server.node.log_in();
        let login_to_platform = |server: &Server| server.node.send("POST", "/api/v1/platform-login", &Value::Null);
        let pair = login_to_platform(&server).ok().json();
        let pair = refresh(&server, &pair).ok().json();
        let bearer = format!("Bearer {}", pair["token"].as_str().unwrap());
        let as_admin = |method: &str, target: &str, body: &str| server.send(method, target, Some(&bearer), body);
        // Tokens of another user, and of one that the console creates.
        let path = format!("/api/user/{}/token", id(&tenant));
        let given = as_admin("GET", &path, "").ok().json();
        let email = format!("console-admin.{}@tidewire.invalid", way.replace(' ', "-"));
        let user = json!({"authority": "TENANT_ADMIN", "email": email, "tenantId": tenant["tenantId"]});
        let user = as_admin("POST", "/api/user", &user.to_string()).ok().json();
        let path = format!("/api/user/{}/activationLink", id(&user));
        let link = as_admin("GET", &path, "").ok().body;
        let (_, token) = link.split_once("activateToken=").unwrap();
        let body = json!({"activateToken": token, "password": "made for this login"}).to_string();
        let created = server.send("POST", "/api/noauth/activate", None, &body);
        let created = created.ok().json();
        for pair in [&pair, &given, &created] {
            me(&server, pair).ok();
        }

        let own = std::mem::replace(&mut server.node.token, other.clone());
        let of_other = login_to_platform(&server).ok().json();
        match way {
            "logout" => {
                server.node.token = own;
                assert_eq!(server.node.send("POST", "/api/v1/logout", &Value::Null).status, 204);
                server.node.token = other;
            }
            "other logins" => {
                server.node.delete("/api/v1/own-logins").ok();
            }
            _ => {
                let logins = server.node.get("/api/v1/own-logins").ok().json();
                let mut logins = logins.as_array().unwrap().iter();
                // The last used first.
                let last = logins.find(|login| login["is_current"] == false).unwrap();
                let target = format!("/api/v1/logins/{}", last["id"].as_str().unwrap());
                assert_eq!(server.node.delete(&target).status, 204);
            }
        }
        for pair in [&pair, &given, &created] {
            refused(&me(&server, pair), 401, 10);
            refused(&refresh(&server, pair), 401, 10);
        }
        me(&server, &of_other).ok();
        me(&server, &refresh(&server, &of_other).ok().json()).ok();
    }
    // Sessions of the platform's users do not depend on the console.
    server.get("/api/auth/user").ok();
}

#[test]
fn failed_logins_are_limited() {
    let server = Server::start();
    let mut attempts = 0;
    let limited = loop {
        let answer = server.login(TENANT, "wrong");
        if answer.status != 401 {
            break answer;
        }
        attempts += 1;
        assert!(attempts < 50);
    };
    refused(&limited, 429, 33);
    assert!(attempts >= 10 && !limited.header("retry-after").is_empty());
}

#[test]
fn tokens_end_with_logout_and_password_change() {
    let server = Server::start();
    let pair = server.login(CUSTOMER, "customer").ok().json();
    let bearer = format!("Bearer {}", pair["token"].as_str().unwrap());
    let me = || server.send("GET", "/api/auth/user", Some(&bearer), "");
    assert_eq!(me().ok().json()["email"], CUSTOMER);
    server.send("POST", "/api/auth/logout", Some(&bearer), "").ok();
    refused(&me(), 401, 10);
    let body = json!({"refreshToken": pair["refreshToken"]}).to_string();
    refused(&server.send("POST", "/api/auth/token", None, &body), 401, 10);

    let old = server.token(CUSTOMER);
    let change = |current: &str, new: &str| {
        let body = json!({"currentPassword": current, "newPassword": new});
        server.as_user(CUSTOMER, "POST", "/api/auth/changePassword", &body)
    };
    assert_eq!(
        refused(&change("wrong", "something"), 400, 31),
        "Current password doesn't match!"
    );
    refused(&change("customer", "short"), 400, 31);
    refused(&change("customer", "customer"), 400, 31);
    let pair = change("customer", "something").ok().json();
    refused(
        &server.send("GET", "/api/auth/user", Some(&format!("Bearer {old}")), ""),
        401,
        10,
    );
    let new = format!("Bearer {}", pair["token"].as_str().unwrap());
    server.send("GET", "/api/auth/user", Some(&new), "").ok();
    refused(&server.login(CUSTOMER, "customer"), 401, 10);
    server.login(CUSTOMER, "something").ok();
}

#[test]
fn node_administrator_is_a_system_administrator() {
    let server = Server::start();
    let password = server.node.password.clone();
    let pair = server.login("admin", &password).ok().json();
    let bearer = format!("Bearer {}", pair["token"].as_str().unwrap());
    let send = |method: &str, target: &str, body: Value| server.send(method, target, Some(&bearer), &body.to_string());
    let me = server.send("GET", "/api/auth/user", Some(&bearer), "").ok().json();
    assert_eq!((&me["authority"], &me["name"]), (&json!("SYS_ADMIN"), &json!("admin")));
    let tenant = send("POST", "/api/tenant", json!({"title": "Acme"})).ok().json();
    let user = json!({"authority": "TENANT_ADMIN", "email": "ada@acme.org", "tenantId": tenant["id"]});
    let user = send("POST", "/api/user?sendActivationMail=false", user).ok().json();
    let link = server
        .send(
            "GET",
            &format!("/api/user/{}/activationLink", id(&user)),
            Some(&bearer),
            "",
        )
        .ok()
        .body;
    let (_, token) = link.split_once("activateToken=").unwrap();
    let body = json!({"activateToken": token, "password": "difference engine"}).to_string();
    let pair = server.send("POST", "/api/noauth/activate", None, &body).ok().json();
    let ada = format!("Bearer {}", pair["token"].as_str().unwrap());
    let profiles = server
        .send("GET", "/api/deviceProfiles?pageSize=10&page=0", Some(&ada), "")
        .ok()
        .json();
    assert_eq!(profiles["data"][0]["name"], "default");
    refused(&server.send("POST", "/api/noauth/activate", None, &body), 400, 31);
    // The user cannot see that another tenant's device exists.
    let device = server.device("of another tenant");
    refused(
        &server.send("GET", &format!("/api/device/{device}"), Some(&ada), ""),
        404,
        32,
    );
    server
        .send("DELETE", &format!("/api/tenant/{}", id(&tenant)), Some(&bearer), "")
        .ok();
    refused(&server.send("GET", "/api/auth/user", Some(&ada), ""), 401, 10);
}

#[test]
fn each_authority_has_its_rights() {
    let server = Server::start();
    let customer = server.customer();
    let (own, other) = (server.device("own"), server.device("other"));
    server
        .post(&format!("/api/customer/{customer}/device/{own}"), Value::Null)
        .ok();
    let page = "pageSize=10&page=0";
    let profile = server.get("/api/deviceProfileInfo/default").ok().json();
    let package = json!({"title": "app", "version": "1", "type": "FIRMWARE", "url": "http://127.0.0.1/app",
        "deviceProfileId": profile["id"]});
    let package = id(&server.post("/api/otaPackage", package).ok().json());
    let tenant = server.get("/api/auth/user").ok().json()["tenantId"]["id"].clone();
    let tenant = tenant.as_str().unwrap();
    // User, method, target, status. The status determines the error code.
    let cases: Vec<(&str, &str, String, u16)> = vec![
        (SYSADMIN, "GET", format!("/api/tenants?{page}"), 200),
        (SYSADMIN, "GET", format!("/api/tenant/devices?{page}"), 403),
        (SYSADMIN, "GET", format!("/api/device/{own}"), 403),
        (
            SYSADMIN,
            "GET",
            format!("/api/plugins/telemetry/DEVICE/{own}/keys/timeseries"),
            403,
        ),
        (SYSADMIN, "GET", format!("/api/ruleChains?{page}"), 403),
        (TENANT, "GET", format!("/api/tenants?{page}"), 403),
        (TENANT, "GET", format!("/api/device/{own}"), 200),
        (TENANT, "GET", format!("/api/customer/{customer}/devices?{page}"), 200),
        (CUSTOMER, "GET", format!("/api/tenant/devices?{page}"), 403),
        (CUSTOMER, "GET", format!("/api/device/{own}"), 200),
        (CUSTOMER, "GET", format!("/api/device/info/{own}"), 200),
        (CUSTOMER, "GET", format!("/api/device/{own}/credentials"), 200),
        (CUSTOMER, "GET", format!("/api/device/{other}"), 403),
        (CUSTOMER, "GET", format!("/api/device/{other}/credentials"), 403),
        (CUSTOMER, "DELETE", format!("/api/device/{own}"), 403),
        (
            CUSTOMER,
            "GET",
            format!("/api/plugins/telemetry/DEVICE/{own}/values/attributes"),
            200,
        ),
        (
            CUSTOMER,
            "GET",
            format!("/api/plugins/telemetry/DEVICE/{other}/values/attributes"),
            403,
        ),
        (CUSTOMER, "GET", format!("/api/customer/{customer}/devices?{page}"), 200),
        (CUSTOMER, "GET", format!("/api/customer/{customer}"), 200),
        (CUSTOMER, "GET", format!("/api/ruleChains?{page}"), 403),
        (CUSTOMER, "GET", format!("/api/alarms?{page}"), 200),
        (
            CUSTOMER,
            "GET",
            "/api/deviceProfileInfos?pageSize=10&page=0".into(),
            200,
        ),
        (CUSTOMER, "GET", format!("/api/deviceProfiles?{page}"), 403),
        (SYSADMIN, "GET", format!("/api/tenant/{tenant}"), 200),
        (TENANT, "GET", format!("/api/tenant/{tenant}"), 200),
        (CUSTOMER, "GET", format!("/api/tenant/{tenant}"), 403),
        (SYSADMIN, "GET", format!("/api/tenant/info/{tenant}"), 200),
        (TENANT, "GET", format!("/api/tenant/info/{tenant}"), 200),
        (CUSTOMER, "GET", format!("/api/tenant/info/{tenant}"), 403),
        (TENANT, "GET", format!("/api/otaPackage/{package}"), 200),
        (CUSTOMER, "GET", format!("/api/otaPackage/{package}"), 403),
        (SYSADMIN, "GET", format!("/api/otaPackage/{package}"), 403),
        (CUSTOMER, "GET", format!("/api/otaPackage/info/{package}"), 200),
        (CUSTOMER, "GET", format!("/api/otaPackage/{package}/download"), 403),
        (CUSTOMER, "GET", format!("/api/otaPackages?{page}"), 200),
    ];
    for (user, method, target, status) in cases {
        let answer = server.as_user(user, method, &target, &Value::Null);
        match status {
            200 => assert_eq!(answer.status, 200, "{user} {method} {target}: {}", answer.body),
            _ => {
                let text = refused(&answer, 403, 20);
                assert_eq!(text, "You don't have permission to perform this operation!");
            }
        }
    }
    let devices = server.as_user(
        CUSTOMER,
        "GET",
        &format!("/api/customer/{customer}/devices?{page}"),
        &Value::Null,
    );
    assert_eq!(devices.ok().json()["totalElements"], 1);
    // Customer users may change their device, but not assign it.
    let mut device = server
        .as_user(CUSTOMER, "GET", &format!("/api/device/{own}"), &Value::Null)
        .ok()
        .json();
    device["label"] = json!("mine");
    device["customerId"] = Value::Null;
    device["additionalInfo"] = json!({"description": "near the context", "gateway": true});
    let saved = server.as_user(CUSTOMER, "POST", "/api/device", &device).ok().json();
    assert_eq!(
        (&saved["label"], saved["customerId"]["id"].as_str()),
        (&json!("mine"), Some(&*customer))
    );
    // A gateway sends for other devices, so customer users cannot set this flag.
    assert_eq!(
        saved["additionalInfo"],
        json!({"description": "near the context", "gateway": false})
    );
    refused(
        &server.as_user(CUSTOMER, "POST", "/api/device", &json!({"name": "new"})),
        403,
        20,
    );
}

#[test]
fn api_key_acts_as_its_user_until_disabled() {
    let server = Server::start();
    let me = server.get("/api/auth/user").ok().json();
    let key = server
        .post("/api/apiKey", json!({"userId": me["id"], "description": "script"}))
        .ok()
        .json();
    let value = format!("ApiKey {}", key["value"].as_str().unwrap());
    let ask = || server.send("GET", "/api/auth/user", Some(&value), "");
    assert_eq!(ask().ok().json()["email"], TENANT);
    let list = server
        .get(&format!("/api/apiKeys/{}?pageSize=10&page=0", id(&me)))
        .ok()
        .json();
    assert_eq!(list["totalElements"], 1);
    assert!(!list.to_string().contains("alue"), "{list}");
    let change = |enabled: bool| {
        server
            .as_user(
                TENANT,
                "PUT",
                &format!("/api/apiKey/{}/enabled/{enabled}", id(&key)),
                &Value::Null,
            )
            .ok()
    };
    change(false);
    refused(&ask(), 401, 10);
    change(true);
    ask().ok();
    // Users cannot access keys of other users.
    let other = server.as_user(CUSTOMER, "DELETE", &format!("/api/apiKey/{}", id(&key)), &Value::Null);
    refused(&other, 403, 20);
    server.delete(&format!("/api/apiKey/{}", id(&key))).ok();
    refused(&ask(), 401, 10);
    let past = json!({"userId": me["id"], "expirationTime": 1000});
    let key = server.post("/api/apiKey", past).ok().json();
    let value = format!("ApiKey {}", key["value"].as_str().unwrap());
    refused(&server.send("GET", "/api/auth/user", Some(&value), ""), 401, 10);
}

#[test]
fn administrators_act_as_subordinate_users() {
    let server = Server::start();
    let of = |by: &str, user: &str| {
        let token = server.token(user);
        let me = server.send("GET", "/api/auth/user", Some(&format!("Bearer {token}")), "");
        let path = format!("/api/user/{}/token", id(&me.ok().json()));
        server.as_user(by, "GET", &path, &Value::Null)
    };
    for (by, user) in [(SYSADMIN, TENANT), (TENANT, CUSTOMER)] {
        let pair = of(by, user).ok().json();
        let bearer = format!("Bearer {}", pair["token"].as_str().unwrap());
        let me = server.send("GET", "/api/auth/user", Some(&bearer), "");
        assert_eq!(me.ok().json()["email"], user);
        let body = json!({"refreshToken": pair["refreshToken"]}).to_string();
        server.send("POST", "/api/auth/token", None, &body).ok();
        // This session ends with its own logout, independent of the user's sessions.
        server.send("POST", "/api/auth/logout", Some(&bearer), "{}").ok();
        refused(&server.send("GET", "/api/auth/user", Some(&bearer), ""), 401, 10);
        server
            .send(
                "GET",
                "/api/auth/user",
                Some(&format!("Bearer {}", server.token(user))),
                "",
            )
            .ok();
    }
    for (by, user) in [
        (TENANT, TENANT),
        (CUSTOMER, CUSTOMER),
        (SYSADMIN, CUSTOMER),
        (CUSTOMER, TENANT),
    ] {
        let answer = of(by, user);
        assert!([403, 404].contains(&answer.status), "{by} {user} {}", answer.status);
    }
    let missing = "/api/user/784f394c-42b6-11ea-983c-b7beff2784f9/token";
    refused(&server.as_user(TENANT, "GET", missing, &Value::Null), 404, 32);
}

/// A console administrator who acts as a user of the tenant.
struct ConsoleAdmin {
    name: &'static str,
    password: &'static str,
    tokens: Value,
}

impl ConsoleAdmin {
    /// Creates a tenant user for this login, like the console.
    fn new(server: &mut Server, name: &'static str) -> ConsoleAdmin {
        let body = json!({"name": name, "role": "admin"});
        let made = as_console(server, "POST", "/api/v1/console-users", &body).json();
        let first = made["password"].as_str().unwrap().to_owned();
        let password = "difference engine";
        let body = json!({"current_password": first, "new_password": password});
        assert_eq!(as_console_user(server, name, &first, &body).status, 200);
        let pair = server.login(name, password).ok().json();
        let bearer = format!("Bearer {}", pair["token"].as_str().unwrap());
        let tenant = server.get("/api/auth/user").ok().json()["tenantId"].clone();
        let plain = name.replace('.', "_");
        let user = json!({"authority": "TENANT_ADMIN", "email": format!("console-{plain}.0123456789@tidewire.invalid"), "tenantId": tenant});
        let user = server.send("POST", "/api/user", Some(&bearer), &user.to_string());
        let link = format!("/api/user/{}/activationLink", id(&user.ok().json()));
        let link = server.send("GET", &link, Some(&bearer), "").ok().body;
        let (_, token) = link.split_once("activateToken=").unwrap();
        let body = json!({"activateToken": token, "password": "made for this login"}).to_string();
        let tokens = server.send("POST", "/api/noauth/activate", None, &body).ok().json();
        ConsoleAdmin { name, password, tokens }
    }

    fn me(&self, server: &Server) -> Answer {
        let bearer = format!("Bearer {}", self.tokens["token"].as_str().unwrap());
        server.send("GET", "/api/auth/user", Some(&bearer), "")
    }

    #[track_caller]
    fn assert_logged_out(&self, server: &Server) {
        refused(&self.me(server), 401, 10);
        let body = json!({"refreshToken": self.tokens["refreshToken"]}).to_string();
        refused(&server.send("POST", "/api/auth/token", None, &body), 401, 10);
    }
}

/// Addresses of users that the console creates are reserved, and cannot be changed.
#[test]
fn addresses_of_console_users_are_reserved() {
    let mut server = Server::start();
    let ada = ConsoleAdmin::new(&mut server, "ada");
    let tenant = server.get("/api/auth/user").ok().json()["tenantId"].clone();
    for email in [
        "console-ada.0123456788@tidewire.invalid",
        "Console-ada.0123456787@TIDEWIRE.invalid",
    ] {
        let user = json!({"authority": "TENANT_ADMIN", "email": email, "tenantId": tenant});
        refused(&server.post("/api/user", user), 400, 31);
        let mut own = server.get("/api/auth/user").ok().json();
        own["email"] = email.into();
        refused(&server.post("/api/user", own), 400, 31);
    }
    let bearer = format!("Bearer {}", ada.tokens["token"].as_str().unwrap());
    let as_ada = |user: &Value| server.send("POST", "/api/user", Some(&bearer), &user.to_string());
    let me = ada.me(&server).ok().json();
    for email in ["ada@example.com", "Console-ada.0123456789@tidewire.invalid"] {
        let mut changed = me.clone();
        changed["email"] = email.into();
        refused(&as_ada(&changed), 400, 31);
        refused(&server.post("/api/user", changed), 400, 31);
    }
    let mut named = me.clone();
    named["firstName"] = json!("Ada");
    assert_eq!(as_ada(&named).ok().json()["firstName"], "Ada");
    as_console(
        &mut server,
        "PUT",
        "/api/v1/console-users/ada",
        &json!({"role": "viewer"}),
    )
    .ok();
    ada.assert_logged_out(&server);
    refused(
        &server.login("console-ada.0123456789@tidewire.invalid", "made for this login"),
        401,
        10,
    );
}

#[test]
fn issued_tokens_end_with_the_administrators_role() {
    let mut server = Server::start();
    let ada = ConsoleAdmin::new(&mut server, "ada");
    let pair = server.login("ada", ada.password).ok().json();
    let bearer = |pair: &Value| format!("Bearer {}", pair["token"].as_str().unwrap());
    let user = server.get("/api/auth/user").ok().json();
    let path = format!("/api/user/{}/token", id(&user));
    let given = server.send("GET", &path, Some(&bearer(&pair)), "").ok().json();
    let me = |server: &Server, pair: &Value| server.send("GET", "/api/auth/user", Some(&bearer(pair)), "");
    let refresh = |server: &Server, pair: &Value| {
        let body = json!({"refreshToken": pair["refreshToken"]}).to_string();
        server.send("POST", "/api/auth/token", None, &body)
    };
    assert_eq!(me(&server, &given).ok().json()["email"], TENANT);
    let second = refresh(&server, &given).ok().json();
    let third = refresh(&server, &second).ok().json();
    me(&server, &third).ok();
    as_console(
        &mut server,
        "PUT",
        "/api/v1/console-users/ada",
        &json!({"role": "viewer"}),
    )
    .ok();
    for pair in [&given, &second, &third] {
        refused(&me(&server, pair), 401, 10);
        refused(&refresh(&server, pair), 401, 10);
    }
    // Tokens of the user stay valid.
    server.get("/api/auth/user").ok();
}

/// Sends a request as the first administrator of the console.
fn as_console(server: &mut Server, method: &str, target: &str, body: &Value) -> Answer {
    if server.node.token.is_empty() {
        let password = server.node.password.clone();
        let login = server.node.login("admin", &password).ok().json();
        login["token"].as_str().unwrap().clone_into(&mut server.node.token);
    }
    server.node.send(method, target, body)
}

fn as_console_user(server: &mut Server, name: &str, password: &str, change: &Value) -> Answer {
    let login = server.node.login(name, password).ok().json();
    let own = login["token"].as_str().unwrap().to_owned();
    let admin = std::mem::replace(&mut server.node.token, own);
    let answer = server.node.send("POST", "/api/v1/password", change);
    server.node.token = admin;
    answer
}

#[test]
fn console_access_to_a_tenant_ends_with_the_role() {
    let mut server = Server::start();
    // One name is a prefix of the others.
    let [demoted, reset, removed, changed, other] =
        ["ada", "ada.l", "ada-2", "ada_3", "adam"].map(|name| ConsoleAdmin::new(&mut server, name));
    for one in [&demoted, &reset, &removed, &changed, &other] {
        one.me(&server).ok();
    }
    let of = |one: &ConsoleAdmin| format!("/api/v1/console-users/{}", one.name);
    let key = {
        let bearer = format!("Bearer {}", demoted.tokens["token"].as_str().unwrap());
        let me = demoted.me(&server).ok().json();
        let body = json!({"userId": me["id"], "description": "script"}).to_string();
        let key = server.send("POST", "/api/apiKey", Some(&bearer), &body).ok().json();
        format!("ApiKey {}", key["value"].as_str().unwrap())
    };
    server.send("GET", "/api/auth/user", Some(&key), "").ok();
    as_console(&mut server, "PUT", &of(&demoted), &json!({"role": "viewer"})).ok();
    demoted.assert_logged_out(&server);
    refused(&server.send("GET", "/api/auth/user", Some(&key), ""), 401, 10);
    let answer = as_console(&mut server, "POST", &format!("{}/password", of(&reset)), &Value::Null);
    assert_eq!(answer.status, 201, "{}", answer.body);
    reset.assert_logged_out(&server);
    let answer = as_console(&mut server, "DELETE", &of(&removed), &Value::Null);
    assert_eq!(answer.status, 204, "{}", answer.body);
    removed.assert_logged_out(&server);
    let body = json!({"current_password": changed.password, "new_password": "analytical engine"});
    let answer = as_console_user(&mut server, changed.name, changed.password, &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    changed.assert_logged_out(&server);
    other.me(&server).ok();
    // Other users of the tenant stay logged in.
    server.get("/api/auth/user").ok();
}
