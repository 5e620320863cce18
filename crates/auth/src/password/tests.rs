//! Tests of every hash format with vectors from independent programs.

use super::parse::TEXT_BYTES_MAX;
use super::*;

/// (name, password, hash). The name says which program made the hash.
const VECTORS: &[(&str, &str, &str)] = &[
    (
        "mosquitto_passwd 2.0.11 -b",
        "correct horse",
        "$7$101$rnq/f66IkNnx5rVe$bJ6Pa5ekifsOvEUFWLgY3PKfbQnJxGSbmynyEU7GNsyEiOIahypG9hY6X3POwVtgjvYv8CcKd8VlYChuBDZc/Q==",
    ),
    (
        "mosquitto_passwd 2.0.11 -b, not ASCII",
        "pässwörd ☃",
        "$7$101$RqVT6pRiEmzxxQll$bDhWF4CADT8DUuTReYzUi2ofH50hbMmCx6u/jweknwo6vGr27HqXVA/UZFcG03ZRLqXlfsH2BloNJrU9fkwL9w==",
    ),
    (
        "mosquitto_passwd 2.0.11 -b, one byte",
        "x",
        "$7$101$Y9VAwjHBOVL3PU4x$hfQgFT4BvedDSFvSEvY8lEFInXqk0yLEv1Abkr4SduwhmR5WazSoVBFphuJzVbulCtXzIZ3uUSRG5Nm90eZV1g==",
    ),
    (
        "mosquitto_passwd 2.0.11 -I 250 -b",
        "correct horse",
        "$7$250$PUSzV5AP9yVsOEMW$iBfjeyKdywUrzv5EACqXYjwsQSBHH/444XSQY6Sn/8zE0Mdue4PqA3HBnokw1zL9YEQIZiwJytbfrNj/sDxmew==",
    ),
    (
        "mosquitto_passwd 2.0.11 -H sha512 -b",
        "correct horse",
        "$6$MJog3BoXCCEVr6Wb$lPo/qZodi0R92fiHzaSe4UjnPrgyW1NhO7mcrJ8hO7uvFqo5IQPzPcD4R5qEILtJCM7Er7mP279VWVf90jmdeg==",
    ),
    (
        "argon2-cffi (the reference C code), default cost",
        "correct horse",
        "$argon2id$v=19$m=19456,t=2,p=1$MDEyMzQ1Njc4OWFiY2RlZg$rk2Mi3E4dgRMg0fHaYaptWVZRKqs//6b6k3/nntqGJk",
    ),
    (
        "argon2-cffi, 4 lanes, 24 bytes",
        "correct horse",
        "$argon2id$v=19$m=64,t=3,p=4$MDEyMzQ1Njc4OWFiY2RlZg$4Mu4gRBo8OfP4AzYha4OYJscMD5Np+B9",
    ),
    (
        "hashlib.pbkdf2_hmac",
        "correct horse",
        "$pbkdf2-sha512$i=1000,l=64$MDEyMzQ1Njc4OWFiY2RlZg$OM0FAoIqCVK1sWtxDiffVlBejtLa+ks4TP71JiecwuSZCG8iLbnlIEPOMoVX+i2B2wkSxjQ8CRGR9OkNGuIPMQ",
    ),
    (
        "hashlib.pbkdf2_hmac, without l",
        "correct horse",
        "$pbkdf2-sha512$i=1000$MDEyMzQ1Njc4OWFiY2RlZg$OM0FAoIqCVK1sWtxDiffVlBejtLa+ks4TP71JiecwuSZCG8iLbnlIEPOMoVX+i2B2wkSxjQ8CRGR9OkNGuIPMQ",
    ),
    (
        "hashlib.pbkdf2_hmac, SHA-256",
        "correct horse",
        "$pbkdf2-sha256$i=1000,l=32$MDEyMzQ1Njc4OWFiY2RlZg$cBg8D2DungRB9k76szThf5ehfyBz991ay6PT8Srwk4M",
    ),
    (
        "hashlib.pbkdf2_hmac, SHA-256, 20 bytes",
        "correct horse",
        "$pbkdf2-sha256$i=1000,l=20$MDEyMzQ1Njc4OWFiY2RlZg$cBg8D2DungRB9k76szThf5ehfyA",
    ),
    (
        "sha256sum of salt and password",
        "correct horse",
        "$sha256$a1b2c3d4e5f6$b14581b7d932eac999afc7278a43026a33adee4c362037dced43c3fe9453917e",
    ),
    (
        "sha256sum of salt and password, upper case",
        "correct horse",
        "$sha256$a1b2c3d4e5f6$B14581B7D932EAC999AFC7278A43026A33ADEE4C362037DCED43C3FE9453917E",
    ),
    (
        "sha256sum of password and salt",
        "correct horse",
        "$sha256-suffix$a1b2c3d4e5f6$2097aece87dd35ef2054e06bffdacd5c86782b4056aced997a1d8211d1d3be19",
    ),
];

#[test]
fn hash_of_the_empty_password_matches_nothing() {
    for (hash, is_match) in [
        (PasswordHash::salted_sha256("salt", &Password::new("x")), true),
        (PasswordHash::salted_sha256("salt", &Password::new("")), false),
    ] {
        let password = if is_match { "x" } else { "" };
        assert_eq!(hash.verify(&Password::new(password)), is_match);
    }
}

#[test]
fn foreign_hashes_verify_only_their_password() {
    for (name, password, text) in VECTORS {
        let hash = PasswordHash::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(hash.as_str(), *text, "{name}");
        assert!(hash.verify(&Password::new(*password)), "{name}");
        // A zero byte after the password is not tried: HMAC, and therefore PBKDF2, pads its key with zero bytes.
        let wrong = [
            String::new(),
            format!("{password} "),
            format!("\0{password}"),
            password.to_uppercase(),
        ];
        for wrong in wrong.iter().filter(|wrong| wrong.as_str() != *password) {
            assert!(!hash.verify(&Password::new(wrong.as_str())), "{name}: {wrong:?}");
        }
    }
}

#[test]
fn truncated_hash_never_verifies() {
    for (name, password, text) in VECTORS.iter().filter(|(_, _, text)| !text.contains("m=19456")) {
        for end in 0..text.len() {
            if let Ok(hash) = PasswordHash::parse(&text[..end]) {
                assert!(
                    !hash.verify(&Password::new(*password)) || is_prefix_tolerant(&hash),
                    "{name} cut at {end}"
                );
            }
        }
    }
}

/// PBKDF2 without a stated length: a shorter output is a prefix of a longer one, so a truncated hash is valid.
fn is_prefix_tolerant(hash: &PasswordHash) -> bool {
    hash.as_str().starts_with("$pbkdf2-") && !hash.as_str().contains("l=")
}

#[test]
fn created_hash_is_salted_current_and_verifies() {
    let password = Password::new("correct horse");
    let first = PasswordHash::create(&password).unwrap();
    let second = PasswordHash::create(&password).unwrap();
    assert_ne!(first, second);
    assert!(
        first.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
        "{}",
        first.as_str()
    );
    let parsed = PasswordHash::parse(first.as_str()).unwrap();
    assert_eq!(parsed, first);
    assert!(parsed.verify(&password) && second.verify(&password));
    assert!(!parsed.verify(&Password::new("Correct horse")));
    assert!(!parsed.is_outdated());
}

#[test]
fn invalid_passwords_are_rejected() {
    assert_eq!(
        PasswordHash::create(&Password::new("")).unwrap_err(),
        CreateError::EmptyPassword
    );
    let long = Password::new(vec![b'x'; 65_536]);
    assert_eq!(PasswordHash::create(&long).unwrap_err(), CreateError::PasswordTooLong);
    assert!(!PasswordHash::salted_sha256("salt", &long).verify(&long));
}

#[test]
fn password_is_bytes_not_text() {
    let bytes = Password::new(vec![0xff, 0x00, 0xfe]);
    let hash = PasswordHash::salted_sha256("salt", &bytes);
    assert!(hash.verify(&bytes));
    assert!(!hash.verify(&Password::new(vec![0xff])), "not truncated at a zero byte");
}

#[test]
fn weaker_hashes_are_outdated() {
    for (name, _, text) in VECTORS {
        let is_current = text.contains("m=19456");
        assert_eq!(PasswordHash::parse(text).unwrap().is_outdated(), !is_current, "{name}");
    }
}

#[test]
fn excessive_costs_are_rejected_before_hashing() {
    let argon2 =
        |parameters: &str| format!("$argon2id$v=19${parameters}$MDEyMzQ1Njc4OWFiY2RlZg$rk2Mi3E4dgRMg0fHaYaptWVZ");
    let out_of_bounds = [
        argon2("m=4194304,t=2,p=1"),
        argon2("m=4294967296,t=2,p=1"),
        argon2("m=99999999999999999999999999,t=2,p=1"),
        argon2("m=262145,t=1,p=1"),
        argon2("m=65536,t=64,p=1"),
        argon2("m=19456,t=4000000000,p=1"),
        argon2("m=19456,t=0,p=1"),
        argon2("m=19456,t=2,p=0"),
        argon2("m=19456,t=2,p=17"),
        argon2("m=31,t=2,p=4"),
        argon2("m=7,t=2,p=1"),
        "$argon2id$v=19$m=64,t=2,p=1$MDEyMzQ1$rk2Mi3E4dgRMg0fHaYaptWVZ".into(),
        "$argon2id$v=19$m=64,t=2,p=1$MDEyMzQ1Njc4OWFiY2RlZg$rk2Mi3E4".into(),
        VECTORS[0].2.replace("$7$101$", "$7$4000000000$"),
        VECTORS[0].2.replace("$7$101$", "$7$0$"),
        "$pbkdf2-sha256$i=2000001$MDEyMzQ1Njc4OWFiY2RlZg$cBg8D2DungRB9k76szThf5ehfyA".into(),
        "$sha256$$b14581b7d932eac999afc7278a43026a33adee4c362037dced43c3fe9453917e".into(),
    ];
    for text in out_of_bounds {
        let error = PasswordHash::parse(&text).unwrap_err();
        assert!(matches!(error, HashError::OutOfBounds { .. }), "{text}: {error}");
    }
    let error = PasswordHash::parse(&argon2("m=4194304,t=2,p=1")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "m (memory, KiB) is 4194304: the range is 8 to 262144"
    );
    let error = PasswordHash::parse(&VECTORS[0].2.replace("$101$", "$4000000000$")).unwrap_err();
    assert_eq!(error.to_string(), "iterations is 4000000000: the range is 1 to 2000000");
}

#[test]
fn malformed_hashes_are_rejected_with_a_reason() {
    let hex = "b14581b7d932eac999afc7278a43026a33adee4c362037dced43c3fe9453917e";
    let table = [
        (String::new(), HashError::NotHashed),
        ("secret".into(), HashError::NotHashed),
        ("$".into(), HashError::UnknownScheme),
        ("$5$salt$hash".into(), HashError::UnknownScheme),
        (
            "$argon2i$v=19$m=64,t=3,p=4$MDEyMzQ1Njc4OWFiY2RlZg$4Mu4gRBo8OfP4AzYha4OYJscMD5Np+B9".into(),
            HashError::UnknownScheme,
        ),
        ("$2b$12$abcdefghijklmnopqrstuv".into(), HashError::UnknownScheme),
        ("$7$101$salt".into(), HashError::WrongShape),
        ("$6$a$b$c".into(), HashError::WrongShape),
        (format!("$sha256$a${hex}$"), HashError::WrongShape),
        (
            format!("$sha256${}${hex}", "s".repeat(TEXT_BYTES_MAX)),
            HashError::TooLong,
        ),
        (VECTORS[5].2.replace("v=19", "v=16"), HashError::Argon2Version),
        (
            VECTORS[5].2.replace("m=19456,t=2", "t=2,m=19456"),
            HashError::Parameters,
        ),
        (VECTORS[5].2.replace("p=1", "p=1,data=x"), HashError::Parameters),
        (
            VECTORS[0].2.replace("$101$", "$+101$"),
            HashError::NotANumber { name: "iterations" },
        ),
        (
            VECTORS[0].2.replace("$101$", "$$"),
            HashError::NotANumber { name: "iterations" },
        ),
        (
            VECTORS[0].2.replace("rnq/", "rn q"),
            HashError::NotBase64 { name: "salt" },
        ),
        (
            VECTORS[0].2.replace("/Q==", "/Q"),
            HashError::NotBase64 { name: "hash" },
        ),
        (VECTORS[7].2.replace("l=64", "l=63"), HashError::HashLength),
        (format!("$sha256$a${}", &hex[2..]), HashError::HashLength),
        (format!("$sha256$a${}", &hex[1..]), HashError::NotHex),
        (format!("$sha256$a${}", hex.replace('b', "é")), HashError::NotHex),
        (format!("$sha256$a b${hex}"), HashError::SaltCharacter),
        (format!("$sha256$a:b${hex}"), HashError::SaltCharacter),
    ];
    for (text, expected) in table {
        assert_eq!(PasswordHash::parse(&text).unwrap_err(), expected, "{text}");
    }
}

#[test]
fn debug_output_contains_no_salt_or_hash() {
    for (_, _, text) in VECTORS {
        let hash = PasswordHash::parse(text).unwrap();
        let printed = format!("{hash:?}");
        assert_eq!(printed, format!("PasswordHash({}, ***)", hash.scheme_name()));
    }
}
