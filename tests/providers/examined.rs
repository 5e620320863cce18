//! Authentication providers in the API: their state and figures, tested logins, and checked options.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value as Json, json};

use super::service::{Reply, Service};
use crate::support::api::Api;
use crate::support::http::request;
use crate::support::*;

const PASSWORD: &str = "tr0ub4dor";

const BODY: &str = "[access.http.body]\nusername = \"${username}\"\npassword = \"${password}\"\n";

fn knows_users(request: &Json) -> Reply {
    match (request["username"].as_str(), request["password"] == PASSWORD) {
        (Some("ada"), true) => {
            let rule = json!({ "permission": "allow", "action": "all", "topic": "own/#" });
            Reply::Json(json!({ "result": "allow", "client_attrs": { "site": "a" }, "acl": [rule] }))
        }
        (Some("ada"), false) => Reply::Json(json!({ "result": "deny" })),
        (Some("broken"), _) => Reply::Raw("500 Internal Server Error", ""),
        _ => Reply::Json(json!({ "result": "ignore" })),
    }
}

fn server(service: &Service, access: &str, options: &str) -> Server {
    let address = service.address;
    let url = format!("http://{address}/auth?key=hidden");
    Server::start(&Config::new(format!(
        "[access]\nproviders = [\"http\", \"users\"]\n{access}\n[access.http]\nurl = \"{url}\"\n{options}\n{BODY}"
    )))
}

fn test_login(api: &Api<'_>, user_name: &str, password: &str) -> Json {
    let login = json!({ "client_id": "c", "user_name": user_name, "password": password });
    api.ok("POST", "/api/v1/access/test-login", &login)
}

/// Returns provider, verdict and origin of each step.
fn verdicts(result: &Json) -> Vec<(&str, &str, Option<&str>)> {
    let steps = result["steps"].as_array().expect("steps").iter();
    steps
        .map(|step| {
            let word = |field: &str| step[field].as_str();
            let of = |field: &str| word(field).unwrap_or_default();
            (of("provider"), of("verdict"), word("origin"))
        })
        .collect()
}

#[test]
fn a_tested_login_names_the_verdict_of_each_provider() {
    let service = Service::start(knows_users);
    let server = server(&service, "", "");
    let api = Api::of(&server);
    api.ok(
        "POST",
        "/api/v1/users",
        &json!({ "name": "bob", "password": "correct horse" }),
    );
    let anonymous = ("anonymous", "not_applicable", None);
    let right = test_login(&api, "ada", PASSWORD);
    assert_eq!(
        verdicts(&right),
        [
            anonymous,
            ("http", "right", Some("asked")),
            ("users", "not_asked", None)
        ],
        "{right}"
    );
    let login = &right["login"];
    assert_eq!(
        (&login["attributes"], &login["rules"]),
        (&json!([{ "name": "site", "value": "a" }]), &json!(1)),
        "{right}"
    );
    let again = test_login(&api, "ada", PASSWORD);
    assert_eq!(verdicts(&again)[1], ("http", "right", Some("cache")), "{again}");
    let unknown_there = test_login(&api, "bob", "correct horse");
    let of_http = ("http", "unknown", Some("asked"));
    assert_eq!(verdicts(&unknown_there), [anonymous, of_http, ("users", "right", None)]);
    let wrong = test_login(&api, "bob", "battery staple");
    assert_eq!(verdicts(&wrong)[2], ("users", "wrong", None), "{wrong}");
    assert_eq!(wrong["is_allowed"], false);
    let failed = test_login(&api, "broken", "x");
    assert_eq!(verdicts(&failed)[1], ("http", "failed", Some("asked")), "{failed}");
    let reason = failed["steps"][1]["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("500") && reason.ends_with("the client is rejected"),
        "{reason}"
    );
    let log = api.ok("GET", "/api/v1/audit?operation=test_login", &json!(null));
    let text = log.to_string();
    assert!(
        text.contains("ada") && !text.contains(PASSWORD) && !text.contains("battery"),
        "{text}"
    );
}

#[test]
fn tested_passwords_lock_the_tester_out() {
    let service = Service::start(knows_users);
    let server = server(&service, "max_login_failures = 3\nlogin_lockout = \"1h\"", "");
    let api = Api::of(&server);
    for guess in ["a", "b", "c"] {
        let result = test_login(&api, "ada", guess);
        assert_eq!(verdicts(&result)[1].1, "rejected", "{result}");
    }
    let asked = service.requests_of("ada").len();
    // The address of the assumed client does not matter.
    let guess = json!({ "user_name": "ada", "password": PASSWORD, "address": "192.0.2.9" });
    let (status, answer) = api.call("POST", "/api/v1/access/test-login", &guess);
    assert_eq!(status, 429, "{answer}");
    assert_eq!(service.requests_of("ada").len(), asked);
    // The limit is that of all logins.
    let refused = Connect::new(V5, unique("guess")).user("ada", PASSWORD);
    assert_eq!(server.connect().handshake(&refused).code, 0x97);
}

#[test]
fn providers_are_listed_with_their_state() {
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let service = Service::start(move |request| match failing.load(Ordering::SeqCst) {
        true => Reply::Raw("503 Service Unavailable", ""),
        false => knows_users(request),
    });
    let access = "sources = [\"rules\", \"http\"]";
    let address = service.address;
    let source = format!("on_failure = \"ignore\"\n[access.source.http]\nurl = \"http://{address}/acl?key=hidden\"");
    let server = server(&service, access, &source);
    let api = Api::of(&server);
    let listed = || api.ok("GET", "/api/v1/access/providers", &json!(null));
    let before = listed();
    let http = &before["providers"][0];
    assert_eq!(
        (&http["kind"], &http["state"]),
        (&json!("http"), &json!("not_asked")),
        "{before}"
    );
    assert_eq!(http["address"], format!("http://{address}"));
    assert_eq!(before["sources"][1]["address"], format!("http://{address}"), "{before}");
    assert_eq!(before["providers"][1]["state"], "local");
    let connect = || {
        let mut peer = server.connect();
        peer.handshake(&Connect::new(V5, unique("listed")).user("ada", PASSWORD))
            .code
    };
    assert_ne!(connect(), 0);
    let failed = listed();
    let http = &failed["providers"][0];
    assert_eq!(
        (&http["state"], &http["figures"]["failed"]),
        (&json!("failing"), &json!(1)),
        "{failed}"
    );
    let reason = http["last_failure"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("503"), "{failed}");
    assert!(
        http["last_failure"]["at_unix_ms"]
            .as_u64()
            .is_some_and(|at| at > 1_700_000_000_000)
    );
    // The error of another system can contain values of clients.
    let key = api.ok("POST", "/api/v1/api-keys", &json!({ "name": "eve", "role": "viewer" }));
    let key = key["secret"].as_str().expect("a key");
    let viewer = format!("Authorization: Bearer {key}\r\n");
    let (status, text) = request(server.http(), "GET", "/api/v1/access/providers", &viewer, "");
    let shown: Json = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (status, &shown["providers"][0]["last_failure"]["reason"]),
        (200, &json!("operators see the reason")),
        "{text}"
    );
    fails.store(false, Ordering::SeqCst);
    assert_eq!((connect(), connect()), (0, 0));
    let works = listed();
    let http = &works["providers"][0];
    let figures = &http["figures"];
    assert_eq!(http["state"], "working", "{works}");
    assert!(http["last_failure"].is_object(), "the last failure stays: {works}");
    assert_eq!(
        (&figures["questions"], &figures["allowed"], &figures["cache_hits"]),
        (&json!(2), &json!(1), &json!(1)),
        "{works}"
    );
    assert_eq!(
        (&figures["cached_answers"], &figures["on_failure"]),
        (&json!(1), &json!("ignore"))
    );
    assert!(
        figures["p99_ms"].is_number() && figures["mean_ms"].is_number(),
        "{works}"
    );
    let text = works.to_string();
    assert!(!text.contains("hidden"), "{text}");
}

#[test]
fn options_are_checked_without_a_change() {
    let service = Service::start(knows_users);
    let server = server(&service, "", "");
    let api = Api::of(&server);
    let check = |options: &str| api.call("POST", "/api/v1/access/check", &json!({ "options": options }));
    let valid =
        "[access]\nproviders = [\"jwt\", \"http\"]\n[access.jwt]\nsecret = \"a secret of thirty-two bytes or more\"";
    assert_eq!(check(valid), (200, json!({ "overridden": [] })));
    for (options, field, text) in [
        ("[access]\nproviders = [\"htpp\"]", "options.access.providers", "http"),
        ("[access.http]\nurll = \"x\"", "options.access.http.urll", "url"),
        ("[api]\nbind = \"0.0.0.0:80\"", "options.api.bind", "provider"),
        ("[access.http", "options", "line 1"),
        (
            "[access.http]\nca_file = \"/dev/zero\"",
            "options.access.http.ca_file",
            "/dev/zero is not a file",
        ),
    ] {
        let (status, problem) = check(options);
        assert_eq!(
            (status, &problem["field"]),
            (422, &json!(field)),
            "{options}: {problem}"
        );
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(text), "{options}: {detail}");
    }
    let listed = api.ok("GET", "/api/v1/access/providers", &json!(null));
    assert_eq!(listed["providers"][0]["kind"], "http", "nothing has changed: {listed}");
}
