//! Tests the exchange with vectors of RFC 7677 and of an independent program, and malformed messages.

use sha2::{Sha256, Sha512};

use super::message::MESSAGE_BYTES_MAX;
use super::*;
use crate::secret::Password;

const CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const WITHOUT_PROOF: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";

/// An exchange of `user` with the password `pencil`.
struct Vector {
    method: ScramMethod,
    /// The verifier, computed with Python's hashlib.
    hash: &'static str,
    proof: &'static str,
    server_final: &'static str,
}

const VECTORS: [Vector; 2] = [
    // RFC 7677, section 3.
    Vector {
        method: ScramMethod::Sha256,
        hash: "$scram-sha-256$i=4096$W22ZaJ0SNY7soEsUEjb6gQ$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY$wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU",
        proof: "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        server_final: "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    },
    // The same messages with SHA-512, computed with Python's hashlib.
    Vector {
        method: ScramMethod::Sha512,
        hash: "$scram-sha-512$i=4096$W22ZaJ0SNY7soEsUEjb6gQ$6AAub3065EYRmyFpM2RNwqK+eGnrkYuEWbXn19LsEmBqzu8QaCXNc1FwpnX9NhH2hK/60dzj9DoO5DvVkOHbvg$jZHbYjC1aHh0/hKbxyBuGFjDrgjgKTT1esA7awWiKcRZ0o/0b1yWEebBeSVkkCFewf91nLDfKF24mvD5nmE6rA",
        proof: "gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==",
        server_final: "v=ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw==",
    },
];

fn server(users: &[(&str, &str)]) -> ScramServer {
    let table = Users::empty().unwrap();
    for (name, hash) in users {
        table
            .add(name, PasswordHash::parse(hash).unwrap(), *name == "root")
            .unwrap();
    }
    ScramServer::new(Arc::new(table)).unwrap()
}

/// Returns the last message of a client that knows the password, computed without the code under test for the server.
fn client_final(method: ScramMethod, password: &str, client_first: &str, server_first: &[u8]) -> String {
    let server_first = str::from_utf8(server_first).unwrap();
    let mut fields = server_first.split(',').map(|field| &field[2..]);
    let (nonce, salt, iterations) = (
        fields.next().unwrap(),
        Base64::decode_vec(fields.next().unwrap()).unwrap(),
        fields.next().unwrap().parse().unwrap(),
    );
    let mut salted = vec![0; method.digest_bytes()];
    match method {
        ScramMethod::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), &salt, iterations, &mut salted),
        ScramMethod::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password.as_bytes(), &salt, iterations, &mut salted),
    }
    let bare_at = client_first.match_indices(',').nth(1).unwrap().0 + 1;
    let (header, bare) = client_first.split_at(bare_at);
    let without_proof = format!("c={},r={nonce}", Base64::encode_string(header.as_bytes()));
    let client_key = method.hmac(&salted, b"Client Key");
    let signature = method.hmac(
        &method.digest(&client_key),
        format!("{bare},{server_first},{without_proof}").as_bytes(),
    );
    let proof: Vec<u8> = client_key.iter().zip(signature.iter()).map(|(a, b)| a ^ b).collect();
    format!("{without_proof},p={}", Base64::encode_string(&proof))
}

fn login(server: &ScramServer, client_first: &str, password: &str) -> Result<ScramSuccess, ScramError> {
    let method = ScramMethod::Sha256;
    let (exchange, server_first) = server.begin(method, client_first.as_bytes())?;
    let last = client_final(method, password, client_first, &server_first);
    server.finish(&exchange, last.as_bytes())
}

#[test]
fn exchange_follows_the_vectors() {
    for vector in VECTORS {
        let server = server(&[("user", vector.hash)]);
        let first = format!("n,,n=user,r={CLIENT_NONCE}");
        let begun = server.begin_with_nonce(vector.method, first.as_bytes(), SERVER_NONCE);
        let (exchange, server_first) = begun.unwrap();
        assert_eq!(str::from_utf8(&server_first), Ok(SERVER_FIRST));
        assert_eq!(exchange.user_name(), "user");
        let last = format!("{WITHOUT_PROOF},p={}", vector.proof);
        let success = server.finish(&exchange, last.as_bytes()).unwrap();
        assert_eq!(str::from_utf8(&success.server_final), Ok(vector.server_final));
        assert_eq!((&*success.user_name, success.is_superuser), ("user", false));
    }
}

#[test]
fn password_login_uses_the_same_verifier() {
    for vector in VECTORS {
        let hash = PasswordHash::parse(vector.hash).unwrap();
        assert_eq!(hash.as_str(), vector.hash);
        assert!(hash.verify(&Password::new("pencil")));
        assert!(!hash.verify(&Password::new("Pencil")) && !hash.verify(&Password::new("")));
        assert!(!hash.is_outdated());
    }
}

#[test]
fn created_verifier_accepts_its_password_only() {
    for method in ScramMethod::ALL {
        let hash = PasswordHash::create_scram(&Password::new("correct horse"), method, 1000).unwrap();
        assert!(hash.is_outdated(), "fewer iterations than RFC 7677 requires");
        assert!(
            PasswordHash::parse(hash.as_str())
                .unwrap()
                .verify(&Password::new("correct horse"))
        );
        let server = server(&[("alice", hash.as_str())]);
        let first = "n,,n=alice,r=abc";
        let (exchange, server_first) = server.begin(method, first.as_bytes()).unwrap();
        for (password, is_right) in [("correct horse", true), ("correct horse ", false), ("", false)] {
            let last = client_final(method, password, first, &server_first);
            assert_eq!(
                server.finish(&exchange, last.as_bytes()).is_ok(),
                is_right,
                "{password:?}"
            );
        }
    }
}

#[test]
fn verifier_is_created_only_for_ascii_within_bounds() {
    let create = |password: &[u8], iterations| {
        PasswordHash::create_scram(&Password::new(password), ScramMethod::Sha256, iterations).map(drop)
    };
    assert_eq!(create(b"", 1), Err(CreateError::EmptyPassword));
    assert_eq!(create("pässword".as_bytes(), 1), Err(CreateError::NotAscii));
    assert_eq!(create(b"a\0b", 1), Err(CreateError::NotAscii));
    assert_eq!(create(b"secret", 0), Err(CreateError::Iterations));
    assert_eq!(create(b"secret", 2_000_001), Err(CreateError::Iterations));
    assert_eq!(create(b" ~", 1), Ok(()));
}

#[test]
fn verifier_of_the_other_method_is_not_used() {
    let server = server(&[("user", VECTORS[1].hash)]);
    assert_eq!(login(&server, "n,,n=user,r=abc", "pencil"), Err(ScramError::NoVerifier));
}

#[test]
fn superuser_and_channel_binding_flag_are_taken_over() {
    let server = server(&[("root", VECTORS[0].hash)]);
    for first in [
        "n,,n=root,r=abc",
        "y,,n=root,r=abc",
        "n,a=root,n=root,r=abc,x=extension",
    ] {
        assert!(login(&server, first, "pencil").unwrap().is_superuser, "{first}");
    }
}

#[test]
fn escaped_user_names_are_decoded() {
    let server = server(&[("a=b,c", VECTORS[0].hash), ("Zähler", VECTORS[0].hash)]);
    assert!(login(&server, "n,,n=a=3Db=2Cc,r=abc", "pencil").is_ok());
    assert!(login(&server, "n,,n=Zähler,r=abc", "pencil").is_ok());
    for name in ["a=3db", "a=", "a=2", "a==", "=é"] {
        let first = format!("n,,n={name},r=abc");
        assert_eq!(login(&server, &first, "pencil"), Err(ScramError::Malformed), "{name}");
    }
}

#[test]
fn prohibited_user_names_are_refused() {
    let server = server(&[]);
    let long = "u".repeat(1025);
    for name in [
        "",
        "a\0b",
        "a\u{7f}",
        "a\u{200b}b",
        "a\u{a0}b",
        "\u{202e}a",
        "\u{e000}",
        "\u{fffe}",
        &long,
    ] {
        let first = format!("n,,n={name},r=abc");
        assert_eq!(login(&server, &first, "x"), Err(ScramError::UserName), "{name:?}");
    }
}

#[test]
fn malformed_first_messages_are_refused() {
    let server = server(&[]);
    let long = format!("n,,n=user,r=abc,x={}", "x".repeat(MESSAGE_BYTES_MAX));
    let long_nonce = format!("n,,n=user,r={}", "x".repeat(513));
    let table: &[(&str, ScramError)] = &[
        ("", ScramError::Malformed),
        ("n", ScramError::Malformed),
        ("n,,", ScramError::Malformed),
        ("n,n=user,r=abc", ScramError::Malformed),
        ("x,,n=user,r=abc", ScramError::Malformed),
        ("p=tls-unique,,n=user,r=abc", ScramError::ChannelBinding),
        ("n,a=root,n=user,r=abc", ScramError::AuthorizationIdentity),
        ("n,user,n=user,r=abc", ScramError::Malformed),
        ("n,,m=ext,n=user,r=abc", ScramError::Malformed),
        ("n,,r=abc,n=user", ScramError::Malformed),
        ("n,,n=user", ScramError::Malformed),
        ("n,,n=user,r=", ScramError::Malformed),
        ("n,,n=user,r=a b", ScramError::Malformed),
        ("n,,n=user,r=abc,", ScramError::Malformed),
        ("n,,n=user,r=abc,m=ext", ScramError::Malformed),
        ("n,,n=user,r=abc,xyz", ScramError::Malformed),
        (&long, ScramError::TooLong),
        (&long_nonce, ScramError::Malformed),
    ];
    for (message, expected) in table {
        let result = server.begin(ScramMethod::Sha256, message.as_bytes()).map(drop);
        assert_eq!(result, Err(*expected), "{message:.40}");
    }
    let not_utf8 = server.begin(ScramMethod::Sha256, b"n,,n=\xff,r=abc").map(drop);
    assert_eq!(not_utf8, Err(ScramError::Malformed));
}

#[test]
fn malformed_last_messages_are_refused() {
    let server = server(&[("user", VECTORS[0].hash)]);
    let first = format!("n,,n=user,r={CLIENT_NONCE}");
    let begun = server.begin_with_nonce(ScramMethod::Sha256, first.as_bytes(), SERVER_NONCE);
    let (exchange, _) = begun.unwrap();
    let proof = VECTORS[0].proof;
    let right = format!("{WITHOUT_PROOF},p={proof}");
    let table = [
        (String::new(), ScramError::Malformed),
        (WITHOUT_PROOF.to_owned(), ScramError::Malformed),
        (format!("{WITHOUT_PROOF},p="), ScramError::Malformed),
        (format!("{WITHOUT_PROOF},p=AAAA"), ScramError::Malformed),
        (format!("{right},x=y"), ScramError::Malformed),
        (right.replace("biws", "eSws"), ScramError::ChannelBinding),
        (right.replace("biws", "bi"), ScramError::Malformed),
        (right.replace("$k0", "$k1"), ScramError::Nonce),
        (right.replace(SERVER_NONCE, ""), ScramError::Nonce),
        (right.replace("dHzb", "dHzc"), ScramError::WrongProof),
        (right.replace(",p=", ",x=y,p="), ScramError::WrongProof),
        (right.replace(",p=", ",m=y,p="), ScramError::Malformed),
        (format!("{right}{}", "=".repeat(MESSAGE_BYTES_MAX)), ScramError::TooLong),
    ];
    for (message, expected) in table {
        assert_eq!(
            server.finish(&exchange, message.as_bytes()),
            Err(expected),
            "{message:.90}"
        );
    }
    assert!(server.finish(&exchange, right.as_bytes()).is_ok());
}

#[test]
fn truncated_and_damaged_messages_do_not_panic() {
    let server = server(&[("user", VECTORS[0].hash)]);
    let first = format!("n,,n=user,r={CLIENT_NONCE}");
    let (exchange, _) = server
        .begin_with_nonce(ScramMethod::Sha256, first.as_bytes(), SERVER_NONCE)
        .unwrap();
    let last = format!("{WITHOUT_PROOF},p={}", VECTORS[0].proof);
    for end in 0..last.len() {
        assert!(
            server.finish(&exchange, &last.as_bytes()[..end]).is_err(),
            "cut at {end}"
        );
    }
    for at in 0..last.len() {
        let mut damaged = last.clone().into_bytes();
        damaged[at] ^= 1;
        assert!(server.finish(&exchange, &damaged).is_err(), "damaged at {at}");
        let mut damaged = first.clone().into_bytes();
        damaged.truncate(at);
        damaged.push(b'=');
        let _ = server.begin(ScramMethod::Sha256, &damaged);
    }
}

#[test]
fn last_message_of_another_exchange_is_refused() {
    let server = server(&[("user", VECTORS[0].hash)]);
    let first = "n,,n=user,r=abc";
    let (exchange, server_first) = server.begin(ScramMethod::Sha256, first.as_bytes()).unwrap();
    let last = client_final(ScramMethod::Sha256, "pencil", first, &server_first);
    assert!(server.finish(&exchange, last.as_bytes()).is_ok());
    let (later, later_first) = server.begin(ScramMethod::Sha256, first.as_bytes()).unwrap();
    assert_ne!(server_first, later_first);
    assert_eq!(server.finish(&later, last.as_bytes()), Err(ScramError::Nonce));
}

#[test]
fn unknown_user_gets_a_stable_salt_like_that_of_others() {
    let salt_and_iterations = |server: &ScramServer, name: &str| {
        let first = format!("n,,n={name},r=abc");
        let (_, server_first) = server.begin(ScramMethod::Sha256, first.as_bytes()).unwrap();
        let text = String::from_utf8(server_first.into()).unwrap();
        text.split_once(",s=").unwrap().1.to_owned()
    };
    for users in [&[][..], &[("user", VECTORS[0].hash)]] {
        let server = server(users);
        let missing = salt_and_iterations(&server, "missing");
        assert_eq!(missing, salt_and_iterations(&server, "missing"));
        assert_ne!(missing, salt_and_iterations(&server, "somebody"));
        assert_eq!(missing.len(), "W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".len());
        assert!(missing.ends_with(",i=4096"));
        assert_eq!(
            login(&server, "n,,n=missing,r=abc", "pencil"),
            Err(ScramError::UnknownUser)
        );
    }
    let other_process = server(&[]);
    assert_ne!(
        salt_and_iterations(&server(&[]), "missing"),
        salt_and_iterations(&other_process, "missing")
    );
    let hash = PasswordHash::create_scram(&Password::new("x"), ScramMethod::Sha256, 777).unwrap();
    let other_cost = server(&[("user", hash.as_str())]);
    assert!(salt_and_iterations(&other_cost, "missing").ends_with(",i=777"));
}

#[test]
fn changed_or_deleted_user_cannot_finish() {
    let server = server(&[("user", VECTORS[0].hash)]);
    let first = "n,,n=user,r=abc";
    let (exchange, server_first) = server.begin(ScramMethod::Sha256, first.as_bytes()).unwrap();
    let last = client_final(ScramMethod::Sha256, "pencil", first, &server_first);
    let hash = PasswordHash::create_scram(&Password::new("pencil"), ScramMethod::Sha256, 1).unwrap();
    server.users.set_password("user", hash).unwrap();
    assert_eq!(server.finish(&exchange, last.as_bytes()), Err(ScramError::UserChanged));
    server.users.remove("user").unwrap();
    assert_eq!(server.finish(&exchange, last.as_bytes()), Err(ScramError::UserChanged));
}

#[test]
fn malformed_verifiers_are_rejected() {
    let hash = VECTORS[0].hash;
    for bad in [
        hash.replace("i=4096", "i=0"),
        hash.replace("i=4096", "i=2000001"),
        hash.replace("i=4096", "4096"),
        hash.replace("sha-256", "sha-512"),
        hash.replace("sha-256", "sha-1"),
        hash.replace("$wfPL", "$wfP"),
        hash.replace("W22ZaJ0SNY7soEsUEjb6gQ", ""),
        format!("{hash}$"),
        hash[..hash.rfind('$').unwrap()].to_owned(),
    ] {
        assert!(PasswordHash::parse(&bad).is_err(), "{bad}");
    }
}
