//! Tests of hashes and salts in columns, with values of EMQX.

use super::*;
use crate::verified::VerifiedPasswords;

fn settings(algorithm: HashAlgorithm) -> HashSettings {
    HashSettings {
        algorithm,
        salt_position: SaltPosition::Prefix,
        mac: MacFunction::Sha256,
        iterations: 4096,
        key_bytes: None,
    }
}

fn salted(algorithm: HashAlgorithm, salt_position: SaltPosition) -> HashSettings {
    HashSettings {
        salt_position,
        ..settings(algorithm)
    }
}

fn pbkdf2(mac: MacFunction, iterations: u32, key_bytes: Option<usize>) -> HashSettings {
    HashSettings {
        mac,
        iterations,
        key_bytes,
        ..settings(HashAlgorithm::Pbkdf2)
    }
}

fn verify(settings: &HashSettings, hash: &str, salt: &str, password: &str) -> bool {
    let stored = settings.read(hash.as_bytes(), salt.as_bytes()).expect(hash);
    stored.verify(&Password::new(password))
}

/// Settings, `password_hash`, `salt` and password.
type Vector = (HashSettings, &'static str, &'static str, &'static str);

/// From the documentation and the tests of EMQX, unless a comment names another source.
fn vectors() -> Vec<Vector> {
    use HashAlgorithm::*;
    use SaltPosition::*;
    vec![
        (salted(Plain, Disable), "secret", "", "secret"),
        (salted(Plain, Prefix), "salt-secret", "salt-", "secret"),
        (salted(Plain, Suffix), "secret-salt", "-salt", "secret"),
        // Computed with Python's hashlib.
        (
            salted(Md5, Prefix),
            "d42a0f742ffc1be4e1cc0845c2429c97",
            "salt",
            "secret",
        ),
        (
            salted(Md5, Suffix),
            "99cd2e5a95d555ee7be3b038a4a84625",
            "salt",
            "secret",
        ),
        (
            salted(Md5, Disable),
            "5ebe2294ecd0e0f08eab7690d2a6ee69",
            "salt",
            "secret",
        ),
        (
            salted(Sha1, Prefix),
            "da00ec2e6ff9ed4d342b24a16e262c82f3c8b10b",
            "salt",
            "secret",
        ),
        (
            salted(Sha1, Suffix),
            "8152bc582f58c854f580cb101d3182813dec4afe",
            "salt",
            "secret",
        ),
        (
            salted(Sha1, Disable),
            "E5E9FA1BA31ECD1AE84F75CAAA474F3A663F05F4",
            "salt",
            "secret",
        ),
        (
            salted(Sha256, Prefix),
            "ac63a624e7074776d677dd61a003b8c803eb11db004d0ec6ae032a5d7c9c5caf",
            "salt",
            "sha256",
        ),
        (
            salted(Sha256, Suffix),
            "f84fa2149dbb62ed4e0cf1f550d2949b33a6513d3a7707e08502511c79ccb0ee",
            "salt",
            "secret",
        ),
        (
            salted(Sha256, Suffix),
            "44edc2d57cde8d79c98145003e105b90a14f1460b79186ea9cfe83942fc5abb5",
            "slat_foo123",
            "public",
        ),
        (
            salted(Sha512, Prefix),
            "a1509ab67bfacbad020927b5ac9d91e9100a82e33a0ebb01459367ce921c0aa8\
             157aa5652f94bc84fa3babc08283e44887d61c48bcf8ad7bcb3259ee7d0eafcd",
            "salt",
            "sha512",
        ),
        (
            settings(Bcrypt),
            "$2b$12$wtY3h20mUjjmeaClpqZVveDWGlHzCGsvuThMlneGHA7wVeFYyns2u",
            "$2b$12$wtY3h20mUjjmeaClpqZVve",
            "bcrypt",
        ),
        // From crypt_blowfish, with spaces as in a column CHAR(64).
        (
            settings(Bcrypt),
            "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW    ",
            "",
            "U*U",
        ),
        (
            settings(Bcrypt),
            "$2y$05$CCCCCCCCCCCCCCCCCCCCC.VGOzA784oUp/Z0DY336zx7pLYAy0lwK",
            "",
            "U*U*",
        ),
        (
            pbkdf2(MacFunction::Sha1, 2, Some(32)),
            "01dbee7f4a9e243e988b62c73cda935da05378b93244ec8f48a99e61ad799d86",
            "ATHENA.MIT.EDUraeburn",
            "password",
        ),
        // RFC 6070.
        (
            pbkdf2(MacFunction::Sha1, 4096, None),
            "4b007901b765489abead49d926f721d065a429c1",
            "salt",
            "password",
        ),
        // Computed with Python's hashlib.
        (
            pbkdf2(MacFunction::Sha224, 4096, None),
            "49a31722ef47d2c78c4550b06de28d6696e5b924fde7d6a0269f23c7",
            "salt",
            "secret",
        ),
        (
            pbkdf2(MacFunction::Sha256, 4096, None),
            "609a62b5b687ba6592b12a552c79fe3bf19e4e145a167b795b7acab5e89fa0f6",
            "salt",
            "secret",
        ),
        (
            pbkdf2(MacFunction::Sha384, 4096, None),
            "eccaef3f049893e80cc77eb3a31736636e1cfee7e5d1b9590f035a9c0e9aa4e19a9ad8b30093a72697cf660b9af78d78",
            "salt",
            "secret",
        ),
        (
            pbkdf2(MacFunction::Sha512, 4096, None),
            "01ca241fa5d243c54d014ccbbc7374a1dcc205dff2a67ed7d3c5fdaf831911da\
             808760d85a0c61310737b19e410766903b202388ebbcc737f59e0995648d04f0",
            "salt",
            "secret",
        ),
        // From the tests of argon2's reference implementation.
        (
            settings(Argon2),
            "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
            "",
            "password",
        ),
    ]
}

#[test]
fn passwords_of_emqx_are_verified() {
    for (settings, hash, salt, password) in vectors() {
        assert!(verify(&settings, hash, salt, password), "{settings:?} {hash}");
        assert!(
            !verify(&settings, hash, salt, &format!("{password}x")),
            "{settings:?} {hash}"
        );
        assert!(!verify(&settings, hash, salt, ""), "{settings:?} {hash}");
    }
}

#[test]
fn the_salt_is_part_of_digests_only_where_configured() {
    let hash = "f84fa2149dbb62ed4e0cf1f550d2949b33a6513d3a7707e08502511c79ccb0ee";
    for (position, is_equal) in [
        (SaltPosition::Suffix, true),
        (SaltPosition::Prefix, false),
        (SaltPosition::Disable, false),
    ] {
        let settings = salted(HashAlgorithm::Sha256, position);
        assert_eq!(verify(&settings, hash, "salt", "secret"), is_equal, "{position:?}");
        assert!(!verify(&settings, hash, "pepper", "secret"), "{position:?}");
    }
}

#[test]
fn an_empty_column_is_not_an_empty_password() {
    for position in [SaltPosition::Prefix, SaltPosition::Suffix, SaltPosition::Disable] {
        let settings = salted(HashAlgorithm::Plain, position);
        assert!(!verify(&settings, "", "", ""));
        assert!(!verify(&settings, "salt", "salt", ""));
    }
}

#[test]
fn bcrypt_uses_72_bytes_of_a_password() {
    let long = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789chars after 72 are ignored";
    let hash = "$2a$05$abcdefghijklmnopqrstuu5s2v8.iXieOjg/.AySBTTZIIVFJeBui";
    assert!(verify(&settings(HashAlgorithm::Bcrypt), hash, "", long));
    assert!(verify(&settings(HashAlgorithm::Bcrypt), hash, "", &long[..72]));
    assert!(!verify(&settings(HashAlgorithm::Bcrypt), hash, "", &long[..71]));
}

#[test]
fn invalid_columns_are_errors_without_the_value() {
    use HashAlgorithm::*;
    let bcrypt = |cost: &str| format!("$2b${cost}$wtY3h20mUjjmeaClpqZVveDWGlHzCGsvuThMlneGHA7wVeFYyns2u");
    let out_of_bounds = |name, value, min, max| HashError::OutOfBounds { name, value, min, max };
    for (algorithm, hash, error) in [
        (Sha256, "zz".repeat(32), HashError::NotHex),
        (Sha256, "ab".repeat(31), HashError::HashLength),
        (Sha256, String::new(), HashError::HashLength),
        (Md5, "ab".repeat(32), HashError::HashLength),
        (Pbkdf2, "ab".repeat(33), HashError::HashLength),
        (Bcrypt, "ab".repeat(32), HashError::NotBcrypt),
        (Bcrypt, bcrypt("12").replace("2b", "2x"), HashError::NotBcrypt),
        (Bcrypt, bcrypt("31"), out_of_bounds("bcrypt cost", 31, 4, 14)),
        (Bcrypt, bcrypt("15"), out_of_bounds("bcrypt cost", 15, 4, 14)),
        (Bcrypt, bcrypt("03"), out_of_bounds("bcrypt cost", 3, 4, 14)),
        (Bcrypt, bcrypt("+9"), HashError::NotANumber { name: "bcrypt cost" }),
        (Bcrypt, bcrypt("12").replace("ns2u", "ns2"), HashError::HashLength),
        (Bcrypt, "$2b$12$ü".to_owned(), HashError::HashLength),
        (
            Bcrypt,
            bcrypt("12").replace("ns2u", "ns2="),
            HashError::NotBase64 { name: "bcrypt hash" },
        ),
        (
            Argon2,
            "$argon2id$v=19$m=4194304,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4".to_owned(),
            out_of_bounds("m (memory, KiB)", 4_194_304, 8, 262_144),
        ),
        (
            Argon2,
            format!("$sha256$salt${}", "ab".repeat(32)),
            HashError::NotArgon2,
        ),
    ] {
        let found = settings(algorithm).read(hash.as_bytes(), b"salt").map(drop);
        assert_eq!(found, Err(error), "{algorithm:?} {hash}");
    }
    let error = settings(Sha256).read(b"\xff\xfe", b"").map(drop);
    assert_eq!(error, Err(HashError::NotText));
    let error = settings(Plain).read(b"x", &[b'x'; 5000]).map(drop);
    assert_eq!(error, Err(out_of_bounds("salt length in bytes", 5000, 0, 4096)));
    let stored = settings(Plain).read(b"hunter2", b"pepper").unwrap();
    let text = format!("{stored:?}");
    assert!(!text.contains("hunter2") && !text.contains("pepper"), "{text}");
}

#[test]
fn a_decoy_costs_as_much_as_the_stored_password_and_matches_nothing() {
    for (settings, hash, salt, password) in vectors() {
        let stored = settings.read(hash.as_bytes(), salt.as_bytes()).unwrap();
        let decoy = stored.decoy().unwrap();
        assert!(decoy.costs_as_much_as(&stored), "{settings:?}");
        assert!(!decoy.verify(&Password::new(password)), "{settings:?}");
    }
    use HashAlgorithm::*;
    for algorithm in [Plain, Md5, Sha1, Sha256, Sha512, Bcrypt, Pbkdf2, Argon2] {
        let decoy = settings(algorithm).decoy().unwrap();
        assert!(!decoy.verify(&Password::new("secret")), "{algorithm:?}");
    }
}

#[test]
fn a_cached_password_is_checked_again_after_each_change_of_its_row() {
    let cache = VerifiedPasswords::new(8).unwrap();
    let password = Password::new("secret");
    let read =
        |settings: HashSettings, hash: &str, salt: &str| settings.read(hash.as_bytes(), salt.as_bytes()).unwrap();
    let plain = settings(HashAlgorithm::Plain);
    assert!(cache.verify("alice", &read(plain, "salt-secret", "salt-"), &password));
    assert!(cache.was_verified("alice", &read(plain, "salt-secret", "salt-"), &password));
    assert!(!cache.was_verified("alice", &read(plain, "salt-secret", "salt"), &password));
    assert!(!cache.was_verified("alice", &read(plain, "salt-secret2", "salt-"), &password));
    let suffix = salted(HashAlgorithm::Plain, SaltPosition::Suffix);
    assert!(!cache.was_verified("alice", &read(suffix, "salt-secret", "salt-"), &password));
}
