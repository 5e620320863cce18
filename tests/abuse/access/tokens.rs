//! Forged, changed and stolen JSON Web Tokens.

use std::io::ErrorKind;
use std::net::TcpListener;

use serde_json::{Value as Json, json};

use crate::jwt::{Issuer, base64, claims, code, now, part};
use crate::support::*;

/// The rules of the server, which placeholders could widen.
const RULES: &str = "rules = [{ permission = \"allow\", topics = [\"own/${username}/#\"] }]";

/// Starts a server that binds a token to the user name and the client id, and denies everything without a rule.
fn server(issuer: &Issuer) -> Server {
    let toml = format!(
        "[access]\nanonymous = \"never\"\nproviders = [\"jwt\"]\nmax_login_failures = 0\n{RULES}\n\
         [access.jwt]\npublic_key_file = \"{{dir}}/issuer.pem\"\n\
         [access.jwt.verify_claims]\nsub = \"${{username}}\"\n"
    );
    Server::start(&Config::new(toml).file("issuer.pem", issuer.certificate.clone()))
}

/// Replaces the signature of a token.
fn signed_with(token: &str, signature: &[u8]) -> String {
    let (signed, _) = token.rsplit_once('.').expect("a token");
    format!("{signed}.{}", base64(signature))
}

#[test]
fn forged_tokens_are_rejected() {
    let (issuer, forger) = (Issuer::new("k1"), Issuer::new("k1"));
    let server = server(&issuer);
    let good = issuer.token(&claims("ann", json!({})));
    assert_eq!(code(&server, "ann", &good), 0);
    let parts: Vec<&str> = good.split('.').collect();
    let [header, body, signature] = parts[..] else {
        panic!("{good}")
    };
    let bytes = issuer.sign(format!("{header}.{body}").as_bytes());
    let other_claims = part(&claims("ann", json!({"is_superuser": true})));
    let with_header = |header: Json| forger.token_with(&header, &claims("ann", json!({})));
    let long = "k".repeat(10 * 1024);
    let attacks = [
        ("zeros as signature", signed_with(&good, &[0; 64])),
        ("no signature", format!("{header}.{body}.")),
        ("half a signature", signed_with(&good, &bytes[..32])),
        ("a longer signature", signed_with(&good, &[&bytes[..], &[0]].concat())),
        (
            "a signature with a changed bit",
            signed_with(&good, &[&[bytes[0] ^ 1], &bytes[1..]].concat()),
        ),
        (
            "the order of the curve as r",
            signed_with(&good, &[&[0xFF; 32], &bytes[32..]].concat()),
        ),
        ("other claims", format!("{header}.{other_claims}.{signature}")),
        (
            "another header",
            format!("{}.{body}.{signature}", part(&json!({"alg": "ES256"}))),
        ),
        ("alg none", format!("{}.{body}.", part(&json!({"alg": "none"})))),
        ("alg nOnE", format!("{}.{body}.", part(&json!({"alg": "nOnE"})))),
        (
            "alg none with a signature",
            format!("{}.{body}.{signature}", part(&json!({"alg": "none"}))),
        ),
        ("no alg", with_header(json!({"typ": "JWT"}))),
        ("alg null", with_header(json!({"alg": null}))),
        ("alg is a list", with_header(json!({"alg": ["none", "ES256"]}))),
        ("alg in lower case", with_header(json!({"alg": "es256"}))),
        (
            "a key in the header",
            with_header(json!({"alg": "ES256", "jwk": forger.jwk()})),
        ),
        (
            "a certificate in the header",
            with_header(json!({"alg": "ES256", "x5c": [forger.certificate]})),
        ),
        (
            "a path as key id",
            with_header(json!({"alg": "ES256", "kid": "../../../../dev/null"})),
        ),
        (
            "SQL as key id",
            with_header(json!({"alg": "ES256", "kid": "x' UNION SELECT 'AA"})),
        ),
        ("a long key id", with_header(json!({"alg": "ES256", "kid": long}))),
        ("a number as key id", with_header(json!({"alg": "ES256", "kid": 1}))),
        (
            "an unknown extension",
            issuer.token_with(
                &json!({"alg": "ES256", "crit": ["x"], "x": 1}),
                &claims("ann", json!({})),
            ),
        ),
        ("five parts", format!("{good}.{body}.{signature}")),
        ("two parts", format!("{header}.{body}")),
        ("padding", format!("{good}==")),
        ("a line break at the end", format!("{good}\n")),
        ("a space at the start", format!(" {good}")),
        (
            "a token in a token",
            format!("{header}.{}.{signature}", base64(good.as_bytes())),
        ),
        (
            "more than 16 KiB",
            issuer.token(&claims("ann", json!({"x": "y".repeat(16 * 1024)}))),
        ),
        ("Bearer", format!("Bearer {good}")),
    ];
    for (attack, token) in attacks {
        let found = code(&server, "ann", &token);
        assert!(matches!(found, 0x86 | 0x87), "{attack}: {found:#x}");
    }
    assert_eq!(code(&server, "ann", &good), 0);
}

#[test]
fn claims_of_a_wrong_type_are_rejected() {
    let issuer = Issuer::new("k1");
    let server = server(&issuer);
    let attacks = [
        ("exp as a word", json!({"exp": "never"})),
        ("exp without end", json!({"exp": "inf"})),
        ("exp that is no number", json!({"exp": "NaN"})),
        ("exp null", json!({"exp": null})),
        ("exp negative", json!({"exp": -1})),
        ("exp is a list", json!({"exp": [now() + 60]})),
        ("nbf as a word", json!({"nbf": "always"})),
        ("nbf in the future", json!({"nbf": now() + 600})),
        ("iat in the future", json!({"iat": now() + 600})),
        ("a list of subjects", json!({"sub": ["ann", "ben"]})),
        ("no subject", json!({"sub": null})),
        ("a number as subject", json!({"sub": 1})),
        ("the subject in upper case", json!({"sub": "ANN"})),
        ("the subject with a space", json!({"sub": "ann "})),
        ("a pattern as subject", json!({"sub": "*"})),
        ("a placeholder as subject", json!({"sub": "${username}"})),
        ("rules that are no list", json!({"acl": "all"})),
        (
            "a rule without a topic",
            json!({"acl": [{"permission": "allow", "action": "all"}]}),
        ),
        (
            "an unknown permission",
            json!({"acl": [{"permission": "ALLOW ", "action": "all", "topic": "#"}]}),
        ),
    ];
    for (attack, more) in attacks {
        let found = code(&server, "ann", &issuer.token(&claims("ann", more)));
        assert_eq!(found, 0x87, "{attack}");
    }
    assert_eq!(code(&server, "ann", &issuer.token(&claims("ann", json!({})))), 0);
}

#[test]
fn stolen_tokens_are_of_no_use() {
    let issuer = Issuer::new("k1");
    let server = server(&issuer);
    let token = issuer.token(&claims("ann", json!({})));
    assert_eq!(code(&server, "ann", &token), 0);
    assert_eq!(code(&server, "ben", &token), 0x87, "with another user name");
    let without_name = Connect::new(V5, unique("jwt")).password(&token);
    assert!(
        server.connect().handshake(&without_name).code >= 0x80,
        "without a user name"
    );
    let as_name = Connect::new(V5, unique("jwt")).user_name(&token);
    assert!(server.connect().handshake(&as_name).code >= 0x80, "as user name");
    let expired = issuer.token(&claims("ann", json!({"exp": now() - 365 * 86_400})));
    for _ in 0..2 {
        assert_eq!(code(&server, "ann", &expired), 0x87, "a year later");
    }
}

/// The server never requests the addresses in a header: an attacker chooses them.
#[test]
fn addresses_in_a_header_are_not_requested() {
    let (issuer, forger) = (Issuer::new("k1"), Issuer::new("k2"));
    let server = server(&issuer);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let url = format!("http://{}/keys", listener.local_addr().expect("a bound socket"));
    for field in ["jku", "x5u", "iss"] {
        let token = forger.token_with(
            &json!({"alg": "ES256", field: url}),
            &claims("ann", json!({"iss": url})),
        );
        assert_eq!(code(&server, "ann", &token), 0x87, "{field}");
    }
    // A request would have come before the answer to the client.
    assert_eq!(
        listener.accept().map(|_| ()).map_err(|e| e.kind()),
        Err(ErrorKind::WouldBlock)
    );
}

#[test]
fn names_in_a_token_do_not_widen_rules() {
    let issuer = Issuer::new("k1");
    let server = server(&issuer);
    let publish = |peer: &mut Peer, topic: &str| peer.publish(&Publish::new(topic, "x").qos(1)) < 0x80;
    for user in ["+", "#", "ann/+", "+/#"] {
        for more in [
            json!({}),
            json!({"acl": {"pub": ["own/${username}/#"], "sub": ["own/${username}/#"]}}),
        ] {
            let connect = Connect::new(V5, unique("jwt")).user(user, issuer.token(&claims(user, more)));
            let mut peer = server.connect().speak(V5);
            if peer.handshake(&connect).code >= 0x80 {
                continue;
            }
            for filter in ["own/ann/#", "own/ben/x", "own/#", "#", "own/+/x"] {
                assert!(peer.subscribe_code(filter, 0) >= 0x80, "{user} {filter}");
            }
            assert!(
                !publish(&mut peer, "own/ann/x") && !publish(&mut peer, "own/ben/x"),
                "{user}"
            );
        }
    }
    let mut ann = server.session(&Connect::new(V5, unique("jwt")).user("ann", issuer.token(&claims("ann", json!({})))));
    assert_eq!(ann.subscribe_code("own/ann/#", 0), 0);
    assert!(publish(&mut ann, "own/ann/x"));
}
