//! Logins to the console with OpenID Connect, at a provider of an attacker. `tests/console` has logins at a real one.

mod provider;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use base64ct::{Base64, Encoding};
use serde_json::{Value as Json, json};

use crate::jwt::{Issuer, base64, now, part};
use crate::support::api::Api;
use crate::support::*;
use provider::*;

/// A browser with one cookie.
struct Browser<'s> {
    server: &'s Server,
    cookie: String,
    /// The last `Set-Cookie`.
    set_cookie: String,
}

impl<'s> Browser<'s> {
    fn new(server: &'s Server) -> Browser<'s> {
        Browser {
            server,
            cookie: String::new(),
            set_cookie: String::new(),
        }
    }

    /// Returns status, `Location` and body.
    #[track_caller]
    fn request(&mut self, method: &str, path: &str) -> (u16, String, String) {
        self.request_with(method, path, "")
    }

    /// `header`: a line with its end.
    #[track_caller]
    fn request_with(&mut self, method: &str, path: &str, header: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.server.http()).expect("the API listens");
        let cookie = &self.cookie;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nCookie: other=1; {cookie}\r\n{header}Content-Length: 0\r\n\r\n"
        )
        .expect("the API accepts a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the API answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
        let header = |name: &str| {
            head.lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_default()
        };
        let set = header("set-cookie: ");
        if let Some((pair, _)) = set.split_once(';') {
            self.cookie = pair.to_owned();
            self.set_cookie = set.to_owned();
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (
            status.expect("a status"),
            header("location: ").to_owned(),
            body.to_owned(),
        )
    }

    /// Begins a login, and returns the parameters for the provider.
    #[track_caller]
    fn begin(&mut self) -> HashMap<String, String> {
        let (status, location, body) = self.request("GET", "/api/v1/oidc/login");
        assert_eq!(status, 303, "{body}");
        let (_, query) = location
            .split_once("/authorize?")
            .unwrap_or_else(|| panic!("{location}"));
        parameters(query)
    }

    /// Returns the address that the server selects after the return from the provider.
    #[track_caller]
    fn come_back(&mut self, query: &str) -> String {
        let (status, location, body) = self.request("GET", &format!("/api/v1/oidc/callback?{query}"));
        assert_eq!(status, 303, "{body}");
        location
    }

    #[track_caller]
    fn collect(&mut self) -> (u16, Json) {
        let (status, _, body) = self.request("POST", "/api/v1/oidc/token");
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// Logs in at the provider with changed claims, and returns the address after that.
    #[track_caller]
    fn log_in(&mut self, provider: &Provider, change: &Json) -> String {
        self.log_in_with(provider, |nonce| provider.key.token(&provider.claims(nonce, change)))
    }

    #[track_caller]
    fn log_in_with(&mut self, provider: &Provider, id_token: impl FnOnce(&str) -> String) -> String {
        let begun = self.begin();
        provider.grant(&id_token(&begun["nonce"]));
        self.come_back(&format!("state={}&code=c1&session_state=x", begun["state"]))
    }

    /// Logs in at the provider, and returns the token of the API.
    #[track_caller]
    fn token(&mut self, provider: &Provider, change: &Json) -> String {
        assert_eq!(self.log_in(provider, change), FINISHED, "{}", self.server.log());
        let (status, login) = self.collect();
        assert_eq!(status, 200, "{login}");
        login["token"].as_str().expect("a token").to_owned()
    }
}

const FINISHED: &str = "/#/single-sign-on";

fn problem(name: &str) -> String {
    format!("/#/single-sign-on?problem={name}")
}

/// Sends a request with a token.
#[track_caller]
fn call(server: &Server, token: &str, method: &str, path: &str, body: &Json) -> (u16, Json) {
    let header = format!("Authorization: Bearer {token}\r\n");
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let (status, body) = http::request(server.http(), method, path, &header, &body);
    (status, serde_json::from_str(&body).unwrap_or(Json::Null))
}

#[track_caller]
fn own_role(server: &Server, token: &str) -> Json {
    call(server, token, "GET", "/api/v1/login", &Json::Null).1["role"].clone()
}

#[test]
fn user_of_the_provider_gets_a_login_with_the_mapped_role() {
    let provider = Provider::here();
    let server = provider.server("");
    let mut browser = Browser::new(&server);
    let begun = browser.begin();
    let start_cookie = browser.set_cookie.clone();
    assert!(
        start_cookie.starts_with("tidewire-login=") && start_cookie.contains("; HttpOnly; SameSite=Lax;"),
        "{start_cookie}"
    );
    for (name, expected) in [
        ("response_type", "code"),
        ("client_id", CLIENT_ID),
        ("redirect_uri", "http://localhost:1/api/v1/oidc/callback"),
        ("scope", "openid profile"),
        ("code_challenge_method", "S256"),
        ("tenant", "1"),
    ] {
        assert_eq!(begun[name], expected);
    }
    let roles = json!({"roles": ["watchers", 7, "shift / leaders"]});
    provider.grant(&provider.key.token(&provider.claims(&begun["nonce"], &roles)));
    let back = format!("state={}&code=the%20code&iss={}", begun["state"], provider.issuer());
    assert_eq!(browser.come_back(&back), FINISHED);
    assert!(
        browser.set_cookie.contains("; HttpOnly; SameSite=Strict;"),
        "{}",
        browser.set_cookie
    );
    assert_ne!(browser.set_cookie, start_cookie);
    // The provider verifies the client, the address and PKCE.
    let exchange = provider.received("/token/").remove(0);
    let credentials = "tidewire%20console:a%20secret%3A%20of%20the%2Bclient%25";
    assert_eq!(
        exchange.authorization,
        format!("Basic {}", Base64::encode_string(credentials.as_bytes()))
    );
    let sent = parameters(&exchange.body);
    assert_eq!(
        (&*sent["grant_type"], &*sent["code"]),
        ("authorization_code", "the code")
    );
    assert_eq!(sent["redirect_uri"], begun["redirect_uri"]);
    assert_eq!(challenge(&sent["code_verifier"]), begun["code_challenge"]);
    // The token is collected once, and only with the new cookie.
    assert_eq!(Browser::new(&server).collect().0, 401);
    let cookie = browser.cookie.clone();
    let (status, login) = browser.collect();
    assert_eq!(
        (status, &login["user"], &login["role"]),
        (200, &json!("oidc:ada"), &json!("operator"))
    );
    assert!(browser.set_cookie.contains("Max-Age=0"));
    browser.cookie = cookie;
    assert_eq!(browser.collect().0, 401, "the cookie was used");
    let token = login["token"].as_str().expect("a token");
    assert_eq!(own_role(&server, token), "operator");
    assert_eq!(call(&server, token, "GET", "/api/v1/clients", &Json::Null).0, 200);
    assert_eq!(call(&server, token, "GET", "/api/v1/console-users", &Json::Null).0, 403);
    // The login is listed and audited like others.
    let api = Api::of(&server);
    let logins = api.get("/api/v1/logins?user=oidc%3Aada")["items"].clone();
    assert_eq!(
        (logins.as_array().map(Vec::len), &logins[0]["user"]),
        (Some(1), &json!("oidc:ada"))
    );
    let audit = api.get("/api/v1/audit?user=oidc%3Aada&operation=login")["items"][0].clone();
    assert_eq!(
        (&audit["status"], &audit["body"]["subject"]),
        (&json!(200), &json!("subject 1"))
    );
    assert_eq!(call(&server, token, "POST", "/api/v1/logout", &Json::Null).0, 204);
    assert_eq!(call(&server, token, "GET", "/api/v1/clients", &Json::Null).0, 401);
    let log = server.log();
    let secrets = [
        CLIENT_SECRET,
        "the code",
        "the%20code",
        token,
        &begun["state"],
        &sent["code_verifier"],
    ];
    assert!(!secrets.iter().any(|secret| log.contains(secret)), "{log}");
    let shown = api.get("/api/v1/configuration").to_string();
    assert!(!shown.contains(CLIENT_SECRET), "{shown}");
}

#[test]
fn role_of_a_namespace_is_mapped() {
    let provider = Provider::here();
    let server = provider.server("");
    let mut browser = Browser::new(&server);
    let token = browser.token(&provider, &json!({"roles": ["acme-staff", "acme-leads"]}));
    assert_eq!(own_role(&server, &token), "ns:acme::operator");
    assert_eq!(call(&server, &token, "GET", "/api/v1/clients", &Json::Null).0, 200);
    assert_eq!(call(&server, &token, "GET", "/api/v1/acl", &Json::Null).0, 403);
    let audit = Api::of(&server).get("/api/v1/audit?user=oidc%3Aada&operation=login")["items"][0].clone();
    assert_eq!(audit["namespace"], "acme");
    let token = browser.token(&provider, &json!({"roles": ["acme-leads", "watchers"]}));
    assert_eq!(own_role(&server, &token), "viewer", "the role for the whole server");
    let several = json!({"roles": ["acme-staff", "blue-staff"]});
    assert_eq!(browser.log_in(&provider, &several), problem("no-role"));
}

#[test]
fn users_of_the_provider_are_not_local_users() {
    let provider = Provider::here();
    let server = provider.server("");
    let api = Api::of(&server);
    // The same names as a local user and the administrator.
    let password = api.ok(
        "POST",
        "/api/v1/console-users",
        &json!({"name": "ada", "role": "viewer"}),
    )["password"]
        .clone();
    let (_, local) = call(
        &server,
        "",
        "POST",
        "/api/v1/login",
        &json!({"user": "ada", "password": password}),
    );
    let local = local["token"].as_str().expect("a token");
    let mut browser = Browser::new(&server);
    let ada = browser.token(&provider, &json!({"roles": "owners"}));
    let admin = browser.token(&provider, &json!({"preferred_username": "admin"}));
    assert_eq!(own_role(&server, &ada), "admin");
    assert_eq!(own_role(&server, &admin), "viewer");
    let own = call(&server, &admin, "GET", "/api/v1/own-logins", &Json::Null).1;
    assert_eq!(
        (own.as_array().map(Vec::len), &own[0]["user"]),
        (Some(1), &json!("oidc:admin"))
    );
    assert_eq!(
        call(&server, &admin, "DELETE", "/api/v1/own-logins", &Json::Null).1["ended"],
        0
    );
    // Ending the logins of one, and deleting one, leaves the other.
    api.ok("DELETE", "/api/v1/console-users/ada/logins", &Json::Null);
    assert_eq!(call(&server, local, "GET", "/api/v1/login", &Json::Null).0, 401);
    api.ok("DELETE", "/api/v1/console-users/ada", &Json::Null);
    assert_eq!(own_role(&server, &ada), "admin");
    for (method, path, body) in [
        ("PUT", "/api/v1/console-users/oidc%3Aada", json!({"role": "viewer"})),
        ("DELETE", "/api/v1/console-users/oidc%3Aada", Json::Null),
    ] {
        assert_eq!(api.call(method, path, &body).0, 404);
    }
    let named = json!({"name": "oidc:eve", "role": "admin"});
    assert_eq!(
        api.call("POST", "/api/v1/console-users", &named).0,
        422,
        "a reserved name"
    );
    // No password, and no key that would outlive the user.
    let change = json!({"current_password": "x", "new_password": "a new password"});
    assert_eq!(call(&server, &ada, "POST", "/api/v1/password", &change).0, 403);
    let key = json!({"name": "k", "role": "viewer"});
    assert_eq!(call(&server, &ada, "POST", "/api/v1/api-keys", &key).0, 403);
    let login = json!({"user": "oidc:ada", "password": "x"});
    assert_eq!(call(&server, "", "POST", "/api/v1/login", &login).0, 401);
    assert_eq!(
        api.ok("DELETE", "/api/v1/console-users/oidc%3Aada/logins", &Json::Null)["ended"],
        1
    );
    assert_eq!(call(&server, &ada, "GET", "/api/v1/login", &Json::Null).0, 401);
    assert_eq!(own_role(&server, &admin), "viewer");
}

#[test]
fn forged_id_tokens_are_refused() {
    let provider = Provider::here();
    let server = provider.server("");
    let mut browser = Browser::new(&server);
    let invalid = problem("invalid");
    for change in [
        json!({"nonce": "another"}),
        json!({"nonce": null}),
        json!({"aud": "another"}),
        json!({"aud": [CLIENT_ID, "another"]}),
        json!({"azp": "another"}),
        json!({"iss": "http://localhost/realm"}),
        json!({"exp": now() - 3600}),
        json!({"exp": null}),
        json!({"iat": now() + 3600}),
        json!({"sub": null}),
        json!({"preferred_username": null}),
        json!({"preferred_username": "a\nb"}),
        json!({"preferred_username": ["ada"]}),
    ] {
        // A userinfo endpoint that would confirm everything does not help.
        provider.set(
            "/userinfo",
            Answer::Json(json!({"sub": "subject 1", "nonce": "x", "aud": CLIENT_ID})),
        );
        assert_eq!(browser.log_in(&provider, &change), invalid, "{change}");
    }
    let other = Issuer::new("k1");
    let public = provider.key.jwk().to_string();
    let hmac = |header: &Json, claims: &Json, key: &[u8]| {
        let signed = format!("{}.{}", part(header), part(claims));
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
        format!(
            "{signed}.{}",
            base64(ring::hmac::sign(&key, signed.as_bytes()).as_ref())
        )
    };
    type Forge<'a> = Box<dyn Fn(Json) -> String + 'a>;
    let forged: Vec<(&str, Forge<'_>)> = vec![
        (
            "none",
            Box::new(|claims| format!("{}.{}.", part(&json!({"alg": "none"})), part(&claims))),
        ),
        (
            "no signature",
            Box::new(|claims| format!("{}.{}.", part(&json!({"alg": "ES256", "kid": "k1"})), part(&claims))),
        ),
        ("key of another", Box::new(|claims| other.token(&claims))),
        (
            "key in the header",
            Box::new(|claims| other.token_with(&json!({"alg": "ES256", "jwk": other.jwk()}), &claims)),
        ),
        (
            "unknown key",
            Box::new(|claims| other.token_with(&json!({"alg": "ES256", "kid": "k2"}), &claims)),
        ),
        (
            "HS256 with the public key",
            Box::new(|claims| hmac(&json!({"alg": "HS256", "kid": "k1"}), &claims, public.as_bytes())),
        ),
        (
            "HS256 with the secret",
            Box::new(|claims| hmac(&json!({"alg": "HS256"}), &claims, CLIENT_SECRET.as_bytes())),
        ),
        (
            "changed",
            Box::new(|claims| {
                let token = provider.key.token(&claims);
                let (_, signature) = token.rsplit_once('.').expect("a signature");
                let mut changed = claims;
                changed["roles"] = json!("owners");
                format!(
                    "{}.{}.{signature}",
                    part(&json!({"alg": "ES256", "kid": "k1"})),
                    part(&changed)
                )
            }),
        ),
        ("no token", Box::new(|_| "garbage".to_owned())),
        ("empty", Box::new(|_| String::new())),
        ("long", Box::new(|_| "ey".repeat(20_000))),
    ];
    for (name, forge) in forged {
        let location = browser.log_in_with(&provider, |nonce| forge(provider.claims(nonce, &json!({}))));
        assert_eq!(location, invalid, "{name}");
        assert_eq!(browser.collect().0, 401, "{name}");
    }
    let logins = Api::of(&server).get("/api/v1/logins");
    assert_eq!(
        logins["items"].as_array().map(Vec::len),
        Some(1),
        "only the administrator: {logins}"
    );
    // The same with a valid token.
    browser.token(&provider, &json!({}));
}

#[test]
fn state_is_bound_to_a_browser_and_works_once() {
    let provider = Provider::here();
    let server = provider.server("");
    let expired = problem("expired");
    let mut victim = Browser::new(&server);
    let mut attacker = Browser::new(&server);
    // The attacker sends the victim the end of an own login.
    let of_attacker = attacker.begin();
    provider.grant(&provider.key.token(&provider.claims(&of_attacker["nonce"], &json!({}))));
    let link = format!("state={}&code=c1", of_attacker["state"]);
    assert_eq!(victim.come_back(&link), expired, "without a cookie");
    let begun = victim.begin();
    assert_eq!(victim.come_back(&link), expired, "with another cookie");
    for wrong in ["", "code=c1", "state=&code=c1", "state=x&code=c1&error=access_denied"] {
        assert_eq!(Browser::new(&server).come_back(wrong), expired, "{wrong}");
    }
    assert!(provider.received("/token/").is_empty(), "no code was exchanged");
    // A replay, also with the cookies of the first time.
    provider.grant(&provider.key.token(&provider.claims(&begun["nonce"], &json!({}))));
    let (cookie, link) = (victim.cookie.clone(), format!("state={}&code=c1", begun["state"]));
    assert_eq!(victim.come_back(&link), FINISHED);
    victim.cookie = cookie;
    assert_eq!(victim.come_back(&link), expired, "a replay");
    assert_eq!(provider.received("/token/").len(), 1);
    // The provider refuses, or answers for another issuer.
    let mut browser = Browser::new(&server);
    let begun = browser.begin();
    let refused = format!(
        "state={}&error=access_denied&error_description=%0d%0aSet-Cookie:x",
        begun["state"]
    );
    assert_eq!(browser.come_back(&refused), problem("refused"));
    let begun = browser.begin();
    let other = format!("state={}&code=c1&iss=https://evil.example", begun["state"]);
    assert_eq!(browser.come_back(&other), problem("invalid"));
    let begun = browser.begin();
    assert_eq!(
        browser.come_back(&format!("state={}", begun["state"])),
        problem("invalid"),
        "no code"
    );
    // Parameters do not choose where the browser goes.
    let (_, location, _) = browser.request(
        "GET",
        "/api/v1/oidc/login?redirect_uri=https://evil.example&next=//evil.example",
    );
    assert!(
        location.starts_with(&provider.origin()) && !location.contains("evil"),
        "{location}"
    );
}

#[test]
fn provider_that_is_broken_fails_only_its_logins() {
    let elsewhere = Provider::here();
    let other_issuer = |provider: &Provider| {
        let mut document = provider.discovery();
        document["issuer"] = json!("https://evil.example");
        document
    };
    let internal = |provider: &Provider| {
        let mut document = provider.discovery();
        document["token_endpoint"] = json!("file:///etc/passwd");
        document
    };
    type Break<'a> = (&'a str, Box<dyn Fn(&Provider) -> Option<Answer> + 'a>);
    let broken: Vec<Break<'_>> = vec![
        ("", Box::new(|_| None)),
        (
            "not a JSON object",
            Box::new(|_| Some(Answer::Text(200, "<html>".to_owned()))),
        ),
        (
            "evil.example",
            Box::new(move |provider| Some(Answer::Json(other_issuer(provider)))),
        ),
        (
            "token_endpoint",
            Box::new(move |provider| Some(Answer::Json(internal(provider)))),
        ),
        ("more than", Box::new(|_| Some(Answer::Text(200, " ".repeat(1 << 20))))),
        ("500", Box::new(|_| Some(Answer::Text(500, String::new())))),
        (
            "302",
            Box::new(|_| Some(Answer::Redirect(format!("{}{DISCOVERY}", elsewhere.origin())))),
        ),
        ("no response within 200 ms", Box::new(|_| Some(Answer::Silence))),
    ];
    for (reason, answer) in broken {
        let provider = Provider::away();
        if let Some(answer) = answer(&provider) {
            provider.set(DISCOVERY, answer);
            provider.come();
        }
        let server = provider.server("timeout = \"200ms\"");
        let (status, location, _) = Browser::new(&server).request("GET", "/api/v1/oidc/login");
        assert_eq!((status, location), (303, problem("unavailable")), "{reason}");
        let log = server.log();
        assert!(
            log.contains("the identity provider cannot be used") && log.contains(reason),
            "{reason}: {log}"
        );
        Api::of(&server).get("/api/v1/clients");
        if reason.starts_with("500") {
            provider.reset(DISCOVERY);
            server.wait_until("the login works again", |server| {
                Browser::new(server)
                    .request("GET", "/api/v1/oidc/login")
                    .1
                    .starts_with(&provider.origin())
            });
        }
    }
    assert!(elsewhere.received(DISCOVERY).is_empty(), "redirects are not followed");
}

#[test]
fn errors_of_the_token_endpoint_and_of_userinfo_fail_the_login() {
    let provider = Provider::here();
    let server = provider.server("timeout = \"1s\"");
    let mut browser = Browser::new(&server);
    for (expected, answer) in [
        (
            "refused",
            Answer::Text(
                400,
                json!({"error": "invalid_grant", "error_description": "c1"}).to_string(),
            ),
        ),
        (
            "unavailable",
            Answer::Text(401, json!({"error": "invalid_client"}).to_string()),
        ),
        ("unavailable", Answer::Text(500, "c1".to_owned())),
        ("unavailable", Answer::Text(200, "garbage".to_owned())),
        ("unavailable", Answer::Text(200, "x".repeat(1 << 20))),
        ("unavailable", Answer::Redirect(format!("{}/other", provider.origin()))),
        ("unavailable", Answer::Silence),
        ("invalid", Answer::Json(json!({"access_token": "access"}))),
    ] {
        let begun = browser.begin();
        provider.set("/token/", answer);
        assert_eq!(
            browser.come_back(&format!("state={}&code=c1", begun["state"])),
            problem(expected)
        );
    }
    assert!(
        server
            .log()
            .contains("check api.oidc.client_id and api.oidc.client_secret"),
        "{}",
        server.log()
    );
    // Claims that are missing in the ID token are requested.
    let bare = json!({"roles": null, "preferred_username": null});
    let userinfo = json!({"sub": "subject 1", "preferred_username": "ada", "roles": ["owners"]});
    for (expected, answer) in [
        (
            "invalid",
            Answer::Json(json!({"sub": "another", "preferred_username": "ada", "roles": ["owners"]})),
        ),
        (
            "invalid",
            Answer::Json(json!({"preferred_username": "ada", "roles": ["owners"]})),
        ),
        ("unavailable", Answer::Text(401, String::new())),
        ("unavailable", Answer::Text(200, "[]".to_owned())),
    ] {
        provider.set("/userinfo", answer);
        assert_eq!(browser.log_in(&provider, &bare), problem(expected));
    }
    provider.set("/userinfo", Answer::Json(userinfo));
    let token = browser.token(&provider, &bare);
    assert_eq!(own_role(&server, &token), "admin");
    let asked = provider.received("/userinfo");
    assert!(
        asked.iter().all(|request| request.authorization == "Bearer access"),
        "{asked:?}"
    );
}

#[test]
fn invented_codes_lock_out_their_address() {
    let provider = Provider::here();
    let server = provider.server("timeout = \"1s\"");
    let mut browser = Browser::new(&server);
    let refused = json!({"error": "invalid_grant"}).to_string();
    provider.set("/token/", Answer::Text(400, refused));
    let mut try_code = |number: u32| {
        let begun = browser.begin();
        browser.come_back(&format!("state={}&code=invented{number}", begun["state"]))
    };
    let outcomes: Vec<String> = (0..15).map(&mut try_code).collect();
    assert_eq!(outcomes[0], problem("refused"));
    assert_eq!(outcomes[14], problem("busy"));
    // The limit is 10 failures, one of which is forgotten every 6 seconds.
    let asked = provider.received("/token/").len();
    assert!((10..14).contains(&asked), "{asked} codes reached the provider");
}

#[test]
fn user_without_a_role_is_refused_and_recorded() {
    let provider = Provider::here();
    let server = provider.server("roles_claim = \"realm_access.roles\"");
    let mut browser = Browser::new(&server);
    provider.set("/userinfo", Answer::Json(json!({"sub": "subject 1"})));
    for none in [
        json!({}),
        json!({"realm_access": {"roles": []}}),
        json!({"realm_access": {"roles": ["Owners", "owners ", "admin"]}}),
        json!({"realm_access": {"roles": {"owners": true}}}),
        json!({"realm_access": "owners"}),
        json!({"roles": ["owners"]}),
    ] {
        assert_eq!(browser.log_in(&provider, &none), problem("no-role"), "{none}");
        assert_eq!(browser.collect().0, 401);
    }
    let api = Api::of(&server);
    let audit = api.get("/api/v1/audit?user=oidc%3Aada")["items"].clone();
    assert_eq!(
        (audit.as_array().map(Vec::len), &audit[0]["status"]),
        (Some(6), &json!(403))
    );
    assert!(!audit.to_string().contains("code="), "{audit}");
    let token = browser.token(&provider, &json!({"realm_access": {"roles": ["owners"]}}));
    assert_eq!(own_role(&server, &token), "admin");
}

#[test]
fn foreign_page_cannot_start_a_login() {
    let provider = Provider::here();
    let server = provider.server("");
    let start = |from: &str| {
        let header = format!("Sec-Fetch-Site: {from}\r\n");
        let mut browser = Browser::new(&server);
        let (status, location, _) = browser.request_with("GET", "/api/v1/oidc/login", &header);
        assert_eq!(status, 303, "{from}");
        (location, browser.cookie)
    };
    for foreign in ["cross-site", "same-site", "unknown"] {
        assert_eq!(start(foreign), (problem("foreign-page"), String::new()), "{foreign}");
    }
    for own in ["same-origin", "none"] {
        let (location, cookie) = start(own);
        assert!(
            location.starts_with(&provider.origin()) && !cookie.is_empty(),
            "{own}: {location}"
        );
    }
}

#[test]
fn missing_options_are_reported_and_nothing_changes_without_an_issuer() {
    let server = Server::start(&Config::default());
    let mut browser = Browser::new(&server);
    let (status, _, body) = browser.request("GET", "/api/v1/oidc");
    assert_eq!(
        (status, body.as_str()),
        (200, "{\"is_configured\":false,\"label\":\"\"}")
    );
    assert_eq!(browser.request("GET", "/api/v1/oidc/login").0, 404);
    assert_eq!(browser.request("GET", "/api/v1/oidc/callback?state=x&code=y").0, 404);
    assert_eq!(browser.request("POST", "/api/v1/oidc/token").0, 404);
    let complete = [
        ("issuer", "issuer = \"https://sso.example\""),
        ("client_id", "client_id = \"tidewire\""),
        ("external_url", "external_url = \"https://mqtt.example\""),
        ("roles", "roles = { owners = \"admin\" }"),
    ];
    let dir = std::env::temp_dir().join(unique(&format!("tidewire-oidc-{}", std::process::id())));
    let check = |lines: &[&str]| {
        let text = format!(
            "[node]\ndata_dir = \"{}\"\n[api.oidc]\n{}\n",
            dir.display(),
            lines.join("\n")
        );
        let file = dir.with_extension("toml");
        std::fs::write(&file, text).expect("the temporary directory is writable");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .arg("check")
            .arg("--config")
            .arg(&file)
            .output();
        let _ = std::fs::remove_file(&file);
        let output = output.expect("the program runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let lines = complete.map(|(_, line)| line);
    let (is_valid, text) = check(&lines);
    assert!(is_valid, "{text}");
    for (option, line) in &complete[1..] {
        let others: Vec<&str> = lines.into_iter().filter(|other| other != line).collect();
        let (is_valid, text) = check(&others);
        assert!(!is_valid && text.contains(&format!("api.oidc.{option}")), "{text}");
    }
    for wrong in [
        "issuer = \"sso.example\"",
        "external_url = \"https://mqtt.example/console\"",
        "scopes = [\"profile\"]",
        "roles = { owners = \"root\" }",
    ] {
        let option = wrong.split(' ').next().unwrap_or_default();
        let kept = complete
            .iter()
            .filter(|(name, _)| *name != option)
            .map(|(_, line)| *line);
        let (is_valid, text) = check(&kept.chain([wrong]).collect::<Vec<_>>());
        assert!(
            !is_valid && text.contains(&format!("api.oidc.{option}")),
            "{wrong}: {text}"
        );
    }
}
