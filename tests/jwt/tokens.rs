//! Tokens that are verified with a key of the configuration.

use std::fs;
use std::path::Path;
use std::process::Command;

use ring::signature::{KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};

use super::*;
use crate::database_logins::reconnects::{Crowd, reconnect_at_once};
use crate::support::api::Api;
use crate::support::http::request;

/// An RSA key with 2048 bits, in PKCS #8, for tests.
const RSA: &[u8] = include_bytes!("../fixtures/jwt-rsa-2048.der");

/// The user alice with the password `secret`.
const PASSWORDS: &str = "\
alice:$7$101$9TD5bSTtjvJ+niVN$RUou8ofuC6A1X7MEdwsVjoIuCNGs3o7vgPF3Lafbvqs+sPxIpYZHJ4YgsMSrVms+bnaUoE9AiG7esQKNhEtYdQ==
";

/// Returns a server that verifies tokens with the certificate of the issuer. `jwt` are more options of `access.jwt`.
fn config(issuer: &Issuer, jwt: &str) -> Config {
    let toml = format!(
        "[access]\nanonymous = \"never\"\nproviders = [\"jwt\", \"users\"]\nmax_login_failures = 0\n\
         password_file = \"{{dir}}/users\"\n[access.jwt]\npublic_key_file = \"{{dir}}/issuer.pem\"\n{jwt}"
    );
    Config::new(toml)
        .file("issuer.pem", issuer.certificate.clone())
        .file("users", PASSWORDS)
}

fn server(issuer: &Issuer, jwt: &str) -> Server {
    Server::start(&config(issuer, jwt))
}

/// The client chooses a user name that no claim confirms, and so the attributes from it.
#[test]
fn attributes_of_free_user_names_are_warned_of() {
    let issuer = Issuer::new("k1");
    let attributes = "[access.client_attrs]\ntenant = \"nth(1, tokens(username, '-'))\"\nid = \"clientid\"\n";
    let free = server(&issuer, attributes);
    let warning = "access.client_attrs.tenant is a part of the user name";
    free.wait_until("the log has the warning", |server| server.log().contains(warning));
    assert!(!free.log().contains("access.client_attrs.id"), "{}", free.log());
    let verified = server(&issuer, &format!("user_name_claim = \"sub\"\n{attributes}"));
    verified.wait_until("the log shows the start", |server| server.log().contains("ready"));
    assert!(!verified.log().contains(warning), "{}", verified.log());
}

#[test]
fn tokens_are_verified() {
    let issuer = Issuer::new("k1");
    let server = server(
        &issuer,
        "[access.jwt.verify_claims]\nsub = \"${username}\"\niss = \"https://issuer.example\"\n",
    );
    let good = |more: Json| {
        let mut claims = claims("ann", json!({"iss": "https://issuer.example"}));
        for (name, value) in more.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        claims
    };
    let token = issuer.token(&good(json!({})));
    // The second login uses the remembered token.
    assert_eq!(code(&server, "ann", &token), 0);
    assert_eq!(code(&server, "ann", &token), 0);
    assert_eq!(code(&server, "bob", &token), NOT_AUTHORIZED, "a token of another user");
    for (case, claims) in [
        ("expired", good(json!({"exp": now() - 60}))),
        ("not valid yet", good(json!({"nbf": now() + 60}))),
        ("issued in the future", good(json!({"iat": now() + 60}))),
        ("without exp", json!({"sub": "ann", "iss": "https://issuer.example"})),
        ("another issuer", good(json!({"iss": "https://other.example"}))),
        ("without an issuer", claims("ann", json!({}))),
    ] {
        assert_eq!(code(&server, "ann", &issuer.token(&claims)), NOT_AUTHORIZED, "{case}");
    }
    let other = Issuer::new("k1");
    let with = |header: Json| issuer.token_with(&header, &good(json!({})));
    let jwk = other.jwk();
    let (signed, _) = token.rsplit_once('.').expect("a token");
    for (case, token) in [
        ("another key", other.token(&good(json!({})))),
        (
            "an embedded key",
            other.token_with(&json!({"alg": "ES256", "jwk": jwk}), &good(json!({}))),
        ),
        (
            "an address of a key",
            other.token_with(
                &json!({"alg": "ES256", "jku": "http://127.0.0.1:9/", "x5u": "x"}),
                &good(json!({})),
            ),
        ),
        ("no algorithm", with(json!({"alg": "none"}))),
        ("no signature", format!("{signed}.")),
        (
            "alg none",
            format!("{}.{}.", part(&json!({"alg": "none"})), part(&good(json!({})))),
        ),
        (
            "an extension",
            with(json!({"alg": "ES256", "crit": ["b64"], "b64": true})),
        ),
        ("another algorithm", with(json!({"alg": "ES384"}))),
        ("a secret", with(json!({"alg": "HS256"}))),
    ] {
        assert_eq!(code(&server, "ann", &token), NOT_AUTHORIZED, "{case}");
    }
    // Other passwords are for the next provider.
    assert_eq!(code(&server, "alice", "secret"), 0);
    assert_eq!(code(&server, "alice", "a.b.c"), BAD_USER_NAME_OR_PASSWORD);
    assert_eq!(code(&server, "unknown", "secret"), BAD_USER_NAME_OR_PASSWORD);
    server.assert_alive_as(&Connect::new(V5, unique("jwt")).user("ann", &token));
}

/// Returns SubjectPublicKeyInfo of an RSA key in PEM format.
fn public_pem(key: &RsaKeyPair) -> String {
    let der = key.public_key().as_ref();
    // The algorithm rsaEncryption, and a bit string with the key.
    let mut spki = vec![0x30, 0x0D, 6, 9, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 1, 1, 5, 0];
    let length = der.len() + 1;
    spki.extend([3, 0x82, (length >> 8) as u8, length as u8, 0]);
    spki.extend_from_slice(der);
    let length = spki.len();
    let spki = [vec![0x30, 0x82, (length >> 8) as u8, length as u8], spki].concat();
    let text = base64ct::Base64::encode_string(&spki);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).expect("ASCII"))
        .collect();
    format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
        lines.join("\n")
    )
}

#[test]
fn an_rsa_public_key_is_not_a_secret() {
    let key = RsaKeyPair::from_pkcs8(RSA).expect("a key");
    let pem = public_pem(&key);
    let toml = "[access]\nanonymous = \"never\"\nproviders = [\"jwt\"]\nmax_login_failures = 0\n\
                [access.jwt]\npublic_key_file = \"{dir}/key.pem\"\n";
    let server = Server::start(&Config::new(toml).file("key.pem", pem.clone()));
    let signed = |alg: &str| format!("{}.{}", part(&json!({"alg": alg})), part(&claims("ann", json!({}))));
    let message = signed("RS256");
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        message.as_bytes(),
        &mut signature,
    )
    .expect("a signature");
    assert_eq!(code(&server, "ann", &format!("{message}.{}", base64(&signature))), 0);
    let message = signed("HS256");
    for secret in [pem.as_bytes(), pem.trim().as_bytes(), key.public_key().as_ref()] {
        let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
        let signature = ring::hmac::sign(&secret, message.as_bytes());
        let token = format!("{message}.{}", base64(signature.as_ref()));
        assert_eq!(code(&server, "ann", &token), NOT_AUTHORIZED);
    }
}

#[test]
fn a_shared_secret_can_be_base64() {
    let secret = [5; 32];
    let text = base64ct::Base64::encode_string(&secret);
    let toml = "[access]\nanonymous = \"never\"\nproviders = [\"jwt\"]\n\
                [access.jwt]\nsecret_base64_encoded = true\n";
    // As from a file of a secret store.
    let config = Config::new(toml)
        .file("secret", text.clone())
        .environment("TIDEWIRE__ACCESS__JWT__SECRET_FILE", "{dir}/secret");
    let server = Server::start(&config);
    let message = format!("{}.{}", part(&json!({"alg": "HS256"})), part(&claims("ann", json!({}))));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
    let signature = ring::hmac::sign(&key, message.as_bytes());
    assert_eq!(
        code(&server, "ann", &format!("{message}.{}", base64(signature.as_ref()))),
        0
    );
    let shown = Api::of(&server).get("/api/v1/configuration").to_string();
    assert!(shown.contains("access.jwt.secret") && !shown.contains(&text), "{shown}");
}

#[test]
fn access_rules_of_a_token_restrict_its_client() {
    let issuer = Issuer::new("k1");
    let server = server(&issuer, "");
    let rules = json!([
        {"permission": "allow", "action": "publish", "topic": "t/${username}/up", "qos": [1]},
        {"permission": "allow", "action": "subscribe", "topic": "t/${username}/#"},
        {"permission": "deny", "action": "all", "topic": "#"},
    ]);
    let lists = json!({"pub": ["t/${username}/up"], "sub": ["t/${username}/#"]});
    for (user, acl) in [("ann", rules), ("ben", lists)] {
        let mut peer = session(&server, user, &issuer.token(&claims(user, json!({"acl": acl}))));
        assert_eq!(peer.subscribe_code(format!("t/{user}/#"), 1), 1, "{user}");
        assert_eq!(peer.subscribe_code("t/#", 1), NOT_AUTHORIZED, "{user}");
        assert_eq!(peer.subscribe_code("#", 1), NOT_AUTHORIZED, "{user}");
        assert!(peer.publish(&Publish::new("t/other/up", "x").qos(1)) >= 0x80, "{user}");
        assert!(
            peer.publish(&Publish::new(format!("t/{user}/down"), "x").qos(1)) >= 0x80,
            "{user}"
        );
        let up = format!("t/{user}/up");
        assert_eq!(peer.publish(&Publish::new(&up, "hello").qos(1)), 0, "{user}");
        assert_eq!(peer.expect_publish().topic_str(), up);
    }
    let broken = json!({"acl": [{"permission": "allow", "action": "publish"}]});
    assert_eq!(
        code(&server, "ann", &issuer.token(&claims("ann", broken))),
        NOT_AUTHORIZED
    );
    let all = json!({"acl": {"pub": []}, "is_superuser": true});
    let mut superuser = session(&server, "root", &issuer.token(&claims("root", all)));
    superuser.subscribe("#", 0);
    superuser.subscribe("$SYS/#", 0);
    assert!(superuser.publish(&Publish::new("t/other/up", "x").qos(1)) < 0x80);
}

#[test]
fn attributes_of_a_token_are_values_of_access_rules() {
    let issuer = Issuer::new("k1");
    let server = server(&issuer, "");
    let rule = json!({"permission": "allow", "action": "publish", "topics": ["t/${client_attrs.tenant}/#"]});
    Api::of(&server).ok("PUT", "/api/v1/acl", &json!({"rules": [rule]}));
    for (attributes, topic, expected) in [
        (json!({"tenant": "a"}), "t/a/x", true),
        (json!({"tenant": "a"}), "t/b/x", false),
        (json!({}), "t//x", false),
    ] {
        let token = issuer.token(&claims("ann", json!({"client_attrs": attributes})));
        let mut ann = session(&server, "ann", &token);
        let code = ann.publish(&Publish::new(topic, "x").qos(1));
        assert_eq!(code < 0x80, expected, "{attributes} {topic}");
    }
}

#[test]
fn a_client_is_disconnected_when_its_token_expires() {
    let issuer = Issuer::new("k1");
    let server = server(&issuer, "leeway = \"0s\"\n");
    let soon = issuer.token(&claims("ann", json!({"exp": now() + 3})));
    let mut peer = session(&server, "ann", &soon);
    let mut other = session(&server, "ben", &issuer.token(&claims("ben", json!({}))));
    peer.expect_disconnect(0xA0);
    assert_eq!(
        code(&server, "ann", &soon),
        NOT_AUTHORIZED,
        "the token is not remembered longer"
    );
    other.ping_alone();
}

#[test]
fn clients_that_reconnect_at_once_are_all_admitted() {
    let issuer = Issuer::new("k1");
    let token = |number: u64| issuer.token(&claims(&format!("meter-{number}"), json!({})));
    reconnect_at_once(config(&issuer, ""), &Crowd::default(), token);
}

#[test]
fn expired_tokens_are_no_guesses() {
    let (issuer, other) = (Issuer::new("k1"), Issuer::new("k1"));
    let toml = "[access]\nproviders = [\"jwt\"]\nmax_login_failures = 5\n\
                [access.jwt]\npublic_key_file = \"{dir}/issuer.pem\"\n";
    let server = Server::start(&Config::new(toml).file("issuer.pem", issuer.certificate.clone()));
    let token = |issuer: &Issuer, seconds: i64| {
        let expires = now().saturating_add_signed(seconds);
        issuer.token(&claims("ann", json!({"exp": expires, "jti": unique("jti")})))
    };
    for _ in 0..20 {
        assert_eq!(code(&server, "ann", &token(&issuer, -60)), NOT_AUTHORIZED);
    }
    assert_eq!(code(&server, "ann", &token(&issuer, 60)), 0);
    for _ in 0..5 {
        assert_eq!(code(&server, "ann", &token(&other, -60)), NOT_AUTHORIZED);
    }
    assert_eq!(code(&server, "ann", &token(&issuer, 60)), QUOTA_EXCEEDED);
}

#[test]
fn clients_stay_connected_if_expiry_does_not_disconnect() {
    let issuer = Issuer::new("k1");
    let server = server(&issuer, "leeway = \"0s\"\ndisconnect_after_expire = false\n");
    let soon = issuer.token(&claims("ann", json!({"exp": now() + 2})));
    let mut peer = session(&server, "ann", &soon);
    server.wait_until("the token has expired", |server| {
        code(server, "ann", &soon) == NOT_AUTHORIZED
    });
    peer.ping_alone();
}

/// Fails if a file below the directory contains the text.
#[track_caller]
fn assert_not_in_files(directory: &Path, text: &str) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            assert_not_in_files(&path, text);
        } else {
            // The server can delete a file during the search.
            let bytes = fs::read(&path).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&bytes).contains(text), "{}", path.display());
        }
    }
}

#[test]
fn a_token_as_user_name_is_never_shown() {
    let issuer = Issuer::new("k1");
    let toml = "[log]\nlevel = \"trace\"\n[access]\nanonymous = \"never\"\nproviders = [\"users\", \"jwt\"]\n\
                max_login_failures = 0\n[access.jwt]\nfrom = \"username\"\npublic_key_file = \"{dir}/issuer.pem\"\n";
    let server = Server::start(&Config::new(toml).file("issuer.pem", issuer.certificate.clone()));
    let api = Api::of(&server);
    let file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    api.ok("POST", "/api/v1/actions", &file);
    let sql = "SELECT * FROM \"$events/client_connected\", \"$events/client_connack\", \
               \"$events/client_check_authn_complete\", \"$events/session_subscribed\", \"t/#\"";
    let rule = json!({"id": "events", "sql": sql, "actions": ["file:seen"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let watcher = json!({"name": "watcher", "password": "correct horse battery", "is_superuser": true});
    api.ok("POST", "/api/v1/users", &watcher);
    let connect = Connect::new(V5, unique("jwt")).user("watcher", "correct horse battery");
    let mut watcher = server.session(&connect);
    watcher.subscribe("$SYS/#", 0);

    let as_name = |name: &str| Connect::new(V5, unique("jwt")).user_name(name).persistent();
    let tokens = [
        issuer.token(&claims("bob", json!({}))),
        issuer.token(&claims("bob", json!({"exp": now() - 60}))),
        Issuer::new("k1").token(&claims("bob", json!({}))),
        issuer.token(&json!({"exp": now() + 3600})),
    ];
    let mut bob = server.session(&as_name(&tokens[0]));
    bob.subscribe("t/#", 1);
    assert_eq!(bob.publish(&Publish::new("t/1", "x").qos(1)), 0);
    bob.expect_publish();
    for token in &tokens[1..] {
        assert_eq!(server.connect().handshake(&as_name(token)).code, NOT_AUTHORIZED);
        // An older client, and a token that is cut off.
        let old = Connect::new(V4, unique("jwt")).user_name(&token[..token.len() - 5]);
        assert_ne!(server.connect().handshake(&old).code, 0);
    }
    let clients = api.get("/api/v1/clients").to_string();
    assert!(clients.contains("\"bob\""), "{clients}");
    let seen = server.dir().join("seen.jsonl");
    server.wait_until("the events are written", |_| {
        fs::read_to_string(&seen).is_ok_and(|text| text.matches("client.connack").count() >= 7 && text.contains("bob"))
    });
    let refused = api.get("/api/v1/refused-clients").to_string();
    assert!(refused.contains("***"), "{refused}");
    let (_, metrics) = request(server.http(), "GET", "/metrics", "", "");
    let logs = api.get("/api/v1/logs?limit=1000").to_string();
    for token in &tokens {
        let parts = token.split('.').map(|part| &part[..part.len().min(60)]);
        // The header is the same in all tokens.
        for part in parts.skip(1) {
            for text in [&clients, &refused, &metrics, &logs, &server.log()] {
                assert!(!text.contains(part), "{text}");
            }
            assert_not_in_files(server.dir(), part);
        }
    }
    for packet in watcher.ping() {
        let body = String::from_utf8_lossy(&packet.body).into_owned();
        assert!(!body.contains("eyJ"), "{body}");
    }

    // The name of the session, not the token, is banned.
    let ban = json!({"kind": "user_name", "who": "bob"});
    api.ok("POST", "/api/v1/banned", &ban);
    bob.expect_closed(PATIENCE);
    for _ in 0..2 {
        let fresh = issuer.token(&claims("bob", json!({"jti": unique("jti")})));
        assert_eq!(server.connect().handshake(&as_name(&fresh)).code, BANNED);
    }
    assert_eq!(server.connect().handshake(&as_name(&tokens[0])).code, BANNED);
}

/// Returns the output of `tidewire check` for a configuration, which must be refused.
#[track_caller]
fn refusal(toml: &str) -> String {
    let dir = std::env::temp_dir().join(unique(&format!("tidewire-jwt-{}", std::process::id())));
    fs::create_dir_all(&dir).expect("the temporary directory is writable");
    let file = dir.join("config");
    let text = toml.replace("{dir}", &dir.display().to_string());
    fs::write(dir.join("none.pem"), "no key").expect("the directory is writable");
    fs::write(&file, text).expect("the directory is writable");
    let command = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["check", "--set"])
        .arg(format!("node.data_dir={}", dir.join("data").display()))
        .arg("--config")
        .arg(&file)
        .output()
        .expect("tidewire runs");
    let _ = fs::remove_dir_all(&dir);
    let output = String::from_utf8_lossy(&[command.stdout, command.stderr].concat()).into_owned();
    assert!(!command.status.success(), "{toml}: {output}");
    output
}

#[test]
fn unsuitable_keys_are_refused_at_the_start() {
    let jwt = "[access]\nproviders = [\"jwt\"]\n[access.jwt]\n";
    for (options, expected) in [
        ("", "needs `secret`, `public_key_file` or `jwks_url`"),
        (
            "secret = \"0123456789abcdef0123456789abcdef\"\njwks_url = \"https://example.org\"\n",
            "cannot be set together",
        ),
        ("secret = \"short\"\n", "found a secret with 5 bytes"),
        (
            "secret = \"c2hvcnQ=\"\nsecret_base64_encoded = true\n",
            "found a secret with 5 bytes",
        ),
        ("secret = \"*\"\nsecret_base64_encoded = true\n", "Base64"),
        ("public_key_file = \"{dir}/missing.pem\"\n", "cannot read"),
        ("public_key_file = \"{dir}/none.pem\"\n", "no public key"),
    ] {
        let output = refusal(&format!("{jwt}{options}"));
        assert!(output.contains(expected), "{options}: {output}");
        assert!(!output.contains("0123456789abcdef"), "{output}");
    }
    let anonymous = "[access]\nproviders = [\"jwt\"]\nunknown_users = \"anonymous\"\n[access.jwt]\n\
                     secret = \"0123456789abcdef0123456789abcdef\"\n";
    assert!(refusal(anonymous).contains("access.unknown_users"));
}
