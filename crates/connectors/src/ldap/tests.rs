//! Tests of the encoding, of filters and of names. The client is tested with a real server in `tests/ldap_logins`.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::message::{bind_request, search_request, start_tls_request};
use super::*;

/// Parses a filter whose values stay as they are.
fn filter(text: &str) -> Result<LdapFilter<Vec<u8>>, String> {
    LdapFilter::parse(text, &mut |value| Ok(value.into_bytes()))
}

fn encoded(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    filter(text).unwrap().write(&mut out);
    out
}

#[test]
fn requests_have_the_bytes_of_the_standard() {
    assert_eq!(
        bind_request(1, "cn=a", b"pw"),
        b"\x30\x12\x02\x01\x01\x60\x0d\x02\x01\x03\x04\x04cn=a\x80\x02pw"
    );
    assert_eq!(
        start_tls_request(200),
        b"\x30\x1e\x02\x02\x00\xc8\x77\x18\x80\x161.3.6.1.4.1.1466.20037"
    );
    let search = LdapSearch {
        base: "dc=a".to_owned(),
        scope: SearchScope::Subtree,
        filter: filter("(uid=x)").unwrap(),
        attributes: vec!["cn".to_owned()],
        limit: 2,
    };
    assert_eq!(
        search_request(2, &search),
        b"\x30\x2a\x02\x01\x02\x63\x25\x04\x04dc=a\x0a\x01\x02\x0a\x01\x00\x02\x01\x02\x02\x01\x00\x01\x01\x00\
          \xa3\x08\x04\x03uid\x04\x01x\x30\x04\x04\x02cn"
    );
}

#[test]
fn long_values_have_long_lengths() {
    for (length, header) in [
        (127, &b"\x04\x7f"[..]),
        (128, b"\x04\x81\x80"),
        (256, b"\x04\x82\x01\x00"),
        (70_000, b"\x04\x83\x01\x11\x70"),
    ] {
        let mut out = Vec::new();
        super::ber::push(&mut out, 0x04, &vec![b'x'; length]);
        assert_eq!(&out[..header.len()], header);
        assert_eq!(out.len(), header.len() + length);
        let mut reader = super::ber::BerReader::new(&out);
        assert_eq!(reader.element().unwrap().1.len(), length);
    }
}

#[test]
fn filters_of_the_standard_are_encoded() {
    for (text, expected) in [
        ("(cn=a)", &b"\xa3\x07\x04\x02cn\x04\x01a"[..]),
        (" ( cn = a ) ", b"\xa3\x09\x04\x02cn\x04\x03 a "),
        ("(cn=*)", b"\x87\x02cn"),
        ("(cn>=1)", b"\xa5\x07\x04\x02cn\x04\x011"),
        ("(cn<=1)", b"\xa6\x07\x04\x02cn\x04\x011"),
        ("(cn~=a)", b"\xa8\x07\x04\x02cn\x04\x01a"),
        ("(!(cn=*))", b"\xa2\x04\x87\x02cn"),
        ("(&(a=*)(b=*))", b"\xa0\x06\x87\x01a\x87\x01b"),
        ("(| (a=*) (b=*) )", b"\xa1\x06\x87\x01a\x87\x01b"),
        ("(cn=a*b*c)", b"\xa4\x0f\x04\x02cn\x30\x09\x80\x01a\x81\x01b\x82\x01c"),
        ("(cn=*b*)", b"\xa4\x09\x04\x02cn\x30\x03\x81\x01b"),
        ("(cn=\\2a\\28\\5c)", b"\xa3\x09\x04\x02cn\x04\x03*(\\"),
        ("(cn=a=b)", b"\xa3\x09\x04\x02cn\x04\x03a=b"),
        ("(cn=)", b"\xa3\x06\x04\x02cn\x04\x00"),
        (
            "(memberOf:1.2.3:=cn=g)",
            b"\xa9\x1a\x81\x051.2.3\x82\x08memberOf\x83\x04cn=g\x84\x01\x00",
        ),
        ("(o:dn:=x)", b"\xa9\x09\x82\x01o\x83\x01x\x84\x01\xff"),
    ] {
        assert_eq!(encoded(text), expected, "{text}");
    }
}

#[test]
fn wrong_filters_are_errors() {
    let nested = format!("{}(a=*){}", "(!".repeat(40), ")".repeat(40));
    for (text, reason) in [
        ("", "ends early"),
        ("uid=x", "expected ("),
        ("(uid=x", "expected )"),
        ("(uid=x))", "after the filter"),
        ("(uid=x)(cn=y)", "after the filter"),
        ("(&)", "without conditions"),
        ("(uid)", "expected a condition"),
        ("(=x)", "not the name of an attribute"),
        ("(${username}=x)", "not the name of an attribute"),
        ("(uid=a**b)", "found **"),
        ("(uid=\\2)", "two hexadecimal digits"),
        ("(uid=\\ff)", "not UTF-8"),
        ("(:=x)", "without an attribute"),
        (nested.as_str(), "nested parentheses"),
    ] {
        let error = filter(text).expect_err(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
    let refused = LdapFilter::<()>::parse("(uid=x)", &mut |value| Err(format!("no {value}")));
    assert_eq!(refused, Err("no x".to_owned()));
}

#[test]
fn values_of_a_parsed_filter_are_literal() {
    let template = LdapFilter::parse("(&(objectClass=device)(uid=U))", &mut Ok).unwrap();
    assert_eq!(
        template.equalities(),
        [("objectClass", &"device".to_owned()), ("uid", &"U".to_owned())]
    );
    for value in ["*", "x)(uid=*", "\\2a", "x)(|(uid=*", "a\u{0}b"] {
        let filled = template.map(&mut |text| {
            if text == "U" {
                value.as_bytes().to_vec()
            } else {
                text.clone().into()
            }
        });
        let mut out = Vec::new();
        filled.write(&mut out);
        let mut expected = Vec::new();
        super::ber::push_with(&mut expected, 0xA3, |out| {
            super::ber::push(out, 0x04, b"uid");
            super::ber::push(out, 0x04, value.as_bytes());
        });
        assert!(out.ends_with(&expected), "{value}");
        assert_eq!(out[0], 0xA0);
    }
}

#[test]
fn values_of_names_are_escaped() {
    let template = LdapDn::parse("uid=U,ou=devices,dc=example,dc=org", &mut Ok).unwrap();
    for (value, expected) in [
        ("meter-1", "meter-1"),
        ("a,ou=admins", "a\\,ou\\=admins"),
        ("a+cn=b", "a\\+cn\\=b"),
        (" a ", "\\ a\\ "),
        (" ", "\\ "),
        ("#04", "\\#04"),
        ("a\"b;c<d>e\\", "a\\\"b\\;c\\<d\\>e\\\\"),
        ("a\nb\u{0}", "a\\0ab\\00"),
        ("zähler", "zähler"),
    ] {
        let text = template.render(&mut |text| if text == "U" { value.to_owned() } else { text.clone() });
        assert_eq!(text, format!("uid={expected},ou=devices,dc=example,dc=org"));
        let read = LdapDn::of(&text).unwrap();
        assert_eq!(read.first(), [("uid".to_owned(), value.to_owned())]);
        assert_eq!(read.values().count(), 4, "{value}");
    }
}

#[test]
fn names_are_compared_as_servers_do() {
    let normalized = |text: &str| LdapDn::of(text).map(|dn| dn.normalized());
    let expected = normalized("cn=Plant A,ou=groups,dc=example,dc=org").unwrap();
    for same in [
        "CN=plant a, OU=Groups, DC=example, DC=org",
        "cn=Plant  A,ou=groups,dc=example,dc=org",
        "cn=Plant\\20A,ou=groups,dc=example,dc=org",
        "cn=\\50lant A ,ou=groups,dc=example,dc=org",
    ] {
        assert_eq!(normalized(same).unwrap(), expected, "{same}");
    }
    for other in [
        "cn=Plant A,ou=groups,dc=example",
        "cn=Plant A\\,ou=groups,dc=example,dc=org",
        "cn=PlantA,ou=groups,dc=example,dc=org",
        "ou=groups,dc=example,dc=org",
        "",
    ] {
        assert_ne!(normalized(other).unwrap(), expected, "{other}");
    }
    assert_eq!(normalized("cn=a+uid=b,o=x"), normalized("UID=b+cn=a,o=x"));
    assert!(LdapDn::of("").unwrap().is_empty());
    for wrong in [
        "cn", "cn=a,", "=a", "cn=#0401", "cn=a\\", "cn=a\\0", "cn=\"a\"", "a=b;c=d", "cn=\\ff",
    ] {
        assert!(LdapDn::of(wrong).is_err(), "{wrong}");
    }
}

/// A message with the ID 1 and this operation.
fn message(tag: u8, content: &[u8], after: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    super::ber::push_with(&mut out, 0x30, |out| {
        super::ber::push_number(out, 0x02, 1);
        super::ber::push(out, tag, content);
        out.extend_from_slice(after);
    });
    out
}

fn result(code: u8, text: &[u8]) -> Vec<u8> {
    let mut out = vec![0x0A, 1, code, 0x04, 0];
    super::ber::push(&mut out, 0x04, text);
    out
}

#[test]
fn answers_are_decoded() {
    let found = |code, diagnostic: &str| LdapResult {
        code,
        diagnostic: diagnostic.to_owned(),
    };
    for (bytes, expected) in [
        (message(0x61, &result(0, b""), b""), LdapResponse::Bind(found(0, ""))),
        (
            message(0x61, &result(49, b"data 52e\0"), b""),
            LdapResponse::Bind(found(49, "data 52e")),
        ),
        (
            // A referral, and a control.
            message(0x65, &[&result(10, b"")[..], b"\xa3\x02\x04\x00"].concat(), b"\xa0\x00"),
            LdapResponse::SearchDone(found(10, "")),
        ),
        (
            // Active Directory writes the name of a notification behind it.
            message(0x78, &result(52, b"bye\r\n"), b"\x8a\x01x"),
            LdapResponse::Extended(found(52, "bye  ")),
        ),
        (message(0x73, b"\x04\x01x", b""), LdapResponse::Reference),
        (
            message(
                0x64,
                b"\x04\x04cn=a\x30\x0e\x30\x0c\x04\x03uid\x31\x05\x04\x01a\x04\x00",
                b"",
            ),
            LdapResponse::Entry(LdapEntry {
                dn: "cn=a".to_owned(),
                attributes: vec![("uid".to_owned(), vec![b"a".to_vec(), Vec::new()])],
            }),
        ),
    ] {
        assert_eq!(message_length(&bytes), Ok(Some(bytes.len())));
        assert_eq!(
            decode(&bytes),
            Ok(LdapMessage {
                id: 1,
                response: expected
            })
        );
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err());
        }
        assert!(decode(&[&bytes[..], b"\0"].concat()).is_err());
    }
    let entry = LdapEntry {
        dn: String::new(),
        attributes: vec![("UID".to_owned(), vec![b"a".to_vec()])],
    };
    assert_eq!(entry.values("uid"), [b"a".to_vec()]);
    assert!(entry.values("cn").is_empty());
    assert_eq!(found(49, "data 52e").to_string(), "invalid credentials (49): data 52e");
}

#[test]
fn malformed_answers_are_errors() {
    for bytes in [
        // No sequence, an indefinite length, a length of 5 bytes, and a tag of several bytes.
        b"\x31\x00".to_vec(),
        b"\x30\x80\x00\x00".to_vec(),
        b"\x30\x85\x00\x00\x00\x00\x00".to_vec(),
        b"\x3f\x00".to_vec(),
        b"\x1f".to_vec(),
        b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
        // Longer than 1 MiB.
        b"\x30\x83\x20\x00\x00".to_vec(),
    ] {
        assert!(message_length(&bytes).is_err(), "{bytes:x?}");
    }
    for bytes in [b"".to_vec(), b"\x30".to_vec(), b"\x30\x82\x01".to_vec()] {
        assert_eq!(message_length(&bytes), Ok(None), "{bytes:x?}");
    }
    for bytes in [
        b"\x30\x00".to_vec(),
        b"\x30\x03\x02\x01\x01".to_vec(),
        // Negative, too long and missing message IDs.
        b"\x30\x05\x02\x01\xff\x73\x00".to_vec(),
        b"\x30\x09\x02\x05\x00\x00\x00\x00\x01\x73\x00".to_vec(),
        b"\x30\x04\x02\x00\x73\x00".to_vec(),
        // A request, and a result without its parts or with a negative code.
        message(0x60, &result(0, b""), b""),
        message(0x61, b"", b""),
        message(0x61, b"\x0a\x01\x00", b""),
        message(0x61, b"\x0a\x01\x80\x04\x00\x04\x00", b""),
        message(0x61, b"\x02\x01\x00\x04\x00\x04\x00", b""),
        message(0x61, &[&result(0, b"")[..], b"\x04\x05"].concat(), b""),
        // An entry with a name that is not text, and one with a value outside of a set.
        message(0x64, b"\x04\x01\xff\x30\x00", b""),
        message(0x64, b"\x04\x00\x30\x05\x30\x03\x04\x01a", b""),
        message(0x64, b"\x04\x00\x30\x08\x30\x06\x04\x01a\x04\x01b", b""),
    ] {
        assert!(decode(&bytes).is_err(), "{bytes:x?}");
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let entry = message(
        0x64,
        b"\x04\x04cn=a\x30\x0e\x30\x0c\x04\x03uid\x31\x05\x04\x01a\x04\x00",
        b"",
    );
    for _ in 0..20_000 {
        let mut bytes = entry.clone();
        for _ in 0..3 {
            let at = usize::from(next()) % bytes.len();
            bytes[at] = next();
        }
        let _ = (message_length(&bytes), decode(&bytes));
    }
}

fn config(servers: &[&str], user: Option<&str>, password: Option<&str>) -> LdapConnectorConfig {
    LdapConnectorConfig {
        servers: servers.iter().map(|url| (*url).to_owned()).collect(),
        starttls: false,
        user: user.map(str::to_owned),
        password: password.map(crate::Secret::new),
        connections_max: 1,
        connect_timeout_ms: 1000,
        tls: crate::TlsConfig {
            verify: false,
            ..crate::TlsConfig::default()
        },
    }
}

#[test]
fn wrong_options_are_errors() {
    for (config, reason) in [
        (config(&[], None, None), "servers: is empty"),
        (config(&["ldap.example.org"], None, None), "has no scheme"),
        (config(&["http://ldap.example.org"], None, None), "unknown scheme"),
        (config(&["ldap://"], None, None), "needs a host"),
        (config(&["ldap://a/dc=example"], None, None), "needs a host"),
        (config(&["ldap://a:0"], None, None), "no valid port"),
        (config(&["ldap://a:b"], None, None), "no valid port"),
        (config(&["ldap://[::1]x"], None, None), "no valid port"),
        (config(&["ldap://a"], Some("cn=a"), None), "password: is missing"),
        (config(&["ldap://a"], Some("cn=a"), Some("")), "password: is missing"),
        (config(&["ldap://a"], None, Some("p")), "user: is missing"),
        (
            LdapConnectorConfig {
                starttls: true,
                ..config(&["ldaps://a"], None, None)
            },
            "remove starttls",
        ),
        (
            LdapConnectorConfig {
                tls: crate::TlsConfig {
                    ca_file: Some("ca.pem".into()),
                    ..crate::TlsConfig::default()
                },
                ..config(&["ldap://a"], None, None)
            },
            "ca_file: no server uses TLS",
        ),
    ] {
        let problems = LdapClient::new(&config).map(drop).expect_err(reason).join("; ");
        assert!(problems.contains(reason), "{problems}");
    }
}

#[test]
fn only_remote_servers_without_tls_are_unencrypted() {
    let servers = [
        "ldap://127.0.0.1:1389",
        "ldap://[::1]",
        "ldap://LocalHost/",
        "ldaps://ldap.example.org",
        "ldap://ldap.example.org",
        "ldap://192.0.2.1",
    ];
    let client = LdapClient::new(&config(&servers, None, None)).unwrap_or_else(|problems| panic!("{problems:?}"));
    let found: Vec<&str> = client.unencrypted_servers().collect();
    assert_eq!(found, ["ldap://ldap.example.org", "ldap://192.0.2.1"]);
    let encrypted = LdapConnectorConfig {
        starttls: true,
        ..config(&["ldap://ldap.example.org"], None, None)
    };
    let client = LdapClient::new(&encrypted).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(client.unencrypted_servers().count(), 0);
}

/// Answers the requests of one connection with these bytes, then ends. Returns the client of this server.
fn client_of(answers: Vec<Vec<u8>>) -> LdapClient {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ldap://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        for answer in answers {
            let mut request = [0; 4096];
            let _ = connection.read(&mut request);
            let _ = connection.write_all(&answer);
        }
    });
    let options = LdapConnectorConfig {
        connect_timeout_ms: 10_000,
        ..config(&[&url], None, None)
    };
    LdapClient::new(&options).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

fn any_search() -> LdapSearch {
    LdapSearch {
        base: "dc=a".to_owned(),
        scope: SearchScope::Subtree,
        filter: LdapFilter::any_entry(),
        attributes: Vec::new(),
        limit: 500,
    }
}

#[test]
fn unusable_answers_are_not_asked_for_again() {
    let success = message(0x61, &result(0, b""), b"");
    for (answer, reason) in [
        (b"\x30\x84\x7f\xff\xff\xff".to_vec(), "longer than 1 MiB"),
        (b"\x30\x00".to_vec(), "ends early"),
        // The answer to the first request again.
        (success.clone(), "message ID 1 instead of 2"),
    ] {
        block_on(async {
            let client = client_of(vec![success.clone(), answer]);
            let (found, session) = client
                .bind("cn=a", b"x")
                .await
                .unwrap_or_else(|error| panic!("{error}"));
            assert!(found.is_success());
            session.release();
            // Another attempt would not find the server, which would be a loss.
            match client.bind("cn=a", b"x").await.map(drop) {
                Err(LdapError::Unusable(text)) => {
                    assert!(text.starts_with("ldap://127.0.0.1:") && text.contains(reason), "{text}");
                }
                other => panic!("{reason}: {other:?}"),
            }
        });
    }
    let name = message(0x64, b"\x04\x01\xff\x30\x00", b"");
    for (answer, reason) in [(name, "not UTF-8"), (success, "another kind of request")] {
        match block_on(client_of(vec![answer]).search(&any_search())) {
            Err(LdapError::Unusable(text)) => assert!(text.contains(reason), "{text}"),
            other => panic!("{reason}: {other:?}"),
        }
    }
}

#[test]
fn a_lost_connection_is_no_unusable_answer() {
    block_on(async {
        let client = client_of(vec![message(0x61, &result(0, b""), b"")]);
        let (_, session) = client
            .bind("cn=a", b"x")
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        session.release();
        let lost = client.bind("cn=a", b"x").await.map(drop);
        assert!(matches!(lost, Err(LdapError::Lost(_))), "{lost:?}");
    });
}

#[test]
fn the_answer_to_a_search_is_limited() {
    let mut entry = Vec::new();
    super::ber::push(&mut entry, 0x04, b"cn=a");
    super::ber::push_with(&mut entry, 0x30, |list| {
        super::ber::push_with(list, 0x30, |attribute| {
            super::ber::push(attribute, 0x04, b"cn");
            super::ber::push_with(attribute, 0x31, |values| {
                super::ber::push(values, 0x04, &vec![b'x'; 1_000_000]);
            });
        });
    });
    let entry = message(0x64, &entry, b"");
    let done = message(0x65, &result(0, b""), b"");
    let found = |entries: usize| {
        let answer = [entry.repeat(entries), done.clone()].concat();
        block_on(client_of(vec![answer]).search(&any_search()))
    };
    assert_eq!(found(4).map(|found| found.entries.len()), Ok(4));
    match found(5) {
        Err(LdapError::Unusable(text)) => assert!(text.contains("longer than 4 MiB"), "{text}"),
        other => panic!("{:?}", other.map(|found| found.entries.len())),
    }
}
