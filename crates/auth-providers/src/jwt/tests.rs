//! Tests of tokens: algorithms, keys, claims and their limits.

use std::future::Future;
use std::net::IpAddr;
use std::time::UNIX_EPOCH;

use auth::{Login, Password};
use base64ct::{Base64UrlUnpadded, Encoding};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaKeyPair,
};
use serde_json::{Value, json};

use super::*;

/// An RSA key with 2048 bits, in PKCS #8. It is used only in tests.
const RSA: &[u8] = include_bytes!("../../../../tests/fixtures/jwt-rsa-2048.der");
const SECRET: &[u8] = &[7; 64];

struct Signer {
    rsa: RsaKeyPair,
    p256: EcdsaKeyPair,
    p384: EcdsaKeyPair,
    ed25519: Ed25519KeyPair,
    random: SystemRandom,
}

impl Signer {
    fn new() -> Signer {
        let random = SystemRandom::new();
        let ecdsa = |algorithm| {
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
            EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).expect("a key")
        };
        let document = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
        Signer {
            rsa: RsaKeyPair::from_pkcs8(RSA).expect("a key"),
            p256: ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
            p384: ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
            ed25519: Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a key"),
            random,
        }
    }

    fn key(&self, algorithm: Algorithm) -> VerificationKey {
        let key = match algorithm {
            Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => VerificationKey::secret(SECRET),
            Algorithm::Es256 => VerificationKey::p256(self.p256.public_key().as_ref()),
            Algorithm::Es384 => VerificationKey::p384(self.p384.public_key().as_ref()),
            Algorithm::EdDsa => VerificationKey::ed25519(self.ed25519.public_key().as_ref()),
            _ => {
                let public: PublicKeyComponents<Vec<u8>> = self.rsa.public().into();
                VerificationKey::rsa(&public.n, &public.e)
            }
        };
        key.expect("a valid key")
    }

    fn sign(&self, algorithm: Algorithm, message: &[u8]) -> Vec<u8> {
        let rsa = |padding: &'static dyn ring::signature::RsaEncoding| {
            let mut signature = vec![0; self.rsa.public().modulus_len()];
            self.rsa
                .sign(padding, &self.random, message, &mut signature)
                .expect("the key is valid");
            signature
        };
        let ecdsa = |key: &EcdsaKeyPair| key.sign(&self.random, message).expect("a signature").as_ref().to_vec();
        match algorithm {
            Algorithm::Hs256 => hmac(ring::hmac::HMAC_SHA256, SECRET, message),
            Algorithm::Hs384 => hmac(ring::hmac::HMAC_SHA384, SECRET, message),
            Algorithm::Hs512 => hmac(ring::hmac::HMAC_SHA512, SECRET, message),
            Algorithm::Rs256 => rsa(&RSA_PKCS1_SHA256),
            Algorithm::Rs384 => rsa(&RSA_PKCS1_SHA384),
            Algorithm::Rs512 => rsa(&RSA_PKCS1_SHA512),
            Algorithm::Ps256 => rsa(&RSA_PSS_SHA256),
            Algorithm::Ps384 => rsa(&RSA_PSS_SHA384),
            Algorithm::Ps512 => rsa(&RSA_PSS_SHA512),
            Algorithm::Es256 => ecdsa(&self.p256),
            Algorithm::Es384 => ecdsa(&self.p384),
            Algorithm::EdDsa => self.ed25519.sign(message).as_ref().to_vec(),
        }
    }

    fn token(&self, algorithm: Algorithm, claims: &Value) -> String {
        self.token_with(algorithm, &json!({"alg": algorithm.name(), "typ": "JWT"}), claims)
    }

    fn token_with(&self, algorithm: Algorithm, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", part(header), part(claims));
        format!("{signed}.{}", base64(&self.sign(algorithm, signed.as_bytes())))
    }
}

fn hmac(algorithm: ring::hmac::Algorithm, secret: &[u8], message: &[u8]) -> Vec<u8> {
    let key = ring::hmac::Key::new(algorithm, secret);
    ring::hmac::sign(&key, message).as_ref().to_vec()
}

fn base64(bytes: &[u8]) -> String {
    Base64UrlUnpadded::encode_string(bytes)
}

fn part(value: &Value) -> String {
    base64(value.to_string().as_bytes())
}

fn config(keys: JwtKeys) -> JwtConfig {
    JwtConfig {
        keys,
        algorithms: Vec::new(),
        from: TokenField::Password,
        user_name_claim: None,
        require_expiry: false,
        leeway: Duration::ZERO,
        disconnect_after_expiry: true,
        verify_claims: Vec::new(),
        acl_claim: "acl".to_owned(),
        groups_claim: Some("groups".to_owned()),
        cache_size: 100,
    }
}

fn provider(key: VerificationKey) -> Arc<JwtProvider> {
    Arc::new(JwtProvider::new(config(JwtKeys::Fixed(key))).expect("a valid configuration"))
}

fn credentials(token: &str) -> Credentials {
    Credentials {
        client_id: "c1".to_owned(),
        user_name: Some("ann".to_owned()),
        password: Some(Password::new(token)),
        address: IpAddr::from([192, 0, 2, 7]),
        certificate_common_name: None,
        certificate_subject: None,
        action: None,
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

fn ask(provider: &Arc<JwtProvider>, token: &str) -> ProviderOutcome {
    wait(provider.clone().authenticate(Arc::new(credentials(token))))
}

#[track_caller]
fn login(outcome: ProviderOutcome) -> Login {
    match outcome {
        ProviderOutcome::Allow(login) => *login,
        other => panic!("{other:?}"),
    }
}

fn denial(outcome: ProviderOutcome) -> Option<DenyReason> {
    match outcome {
        ProviderOutcome::Deny(reason) => Some(reason),
        _ => None,
    }
}

/// A token with a secret, and the outcome of a provider with this configuration.
fn outcome(change: impl FnOnce(&mut JwtConfig), claims: &Value) -> ProviderOutcome {
    let signer = Signer::new();
    let mut config = config(JwtKeys::Fixed(signer.key(Algorithm::Hs256)));
    change(&mut config);
    let provider = Arc::new(JwtProvider::new(config).expect("a valid configuration"));
    ask(&provider, &signer.token(Algorithm::Hs256, claims))
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs()
}

#[test]
fn every_algorithm_is_verified() {
    let signer = Signer::new();
    for algorithm in Algorithm::ALL {
        let provider = provider(signer.key(algorithm));
        let token = signer.token(algorithm, &json!({"sub": "x"}));
        assert_eq!(login(ask(&provider, &token)).provider, Some("jwt"), "{algorithm:?}");
        let (signed, signature) = token.rsplit_once('.').expect("a token");
        let mut bytes = Base64UrlUnpadded::decode_vec(signature).expect("base64");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let claims = part(&json!({"sub": "y"}));
        let (header, _) = signed.split_once('.').expect("a token");
        for wrong in [
            format!("{signed}.{}", base64(&bytes)),
            format!("{signed}.{}", base64(&bytes[..last])),
            format!("{signed}."),
            format!("{header}.{claims}.{signature}"),
            format!("{signed}.{signature}="),
            format!("{signed}.*"),
        ] {
            let denied = denial(ask(&provider, &wrong));
            assert_eq!(denied, Some(DenyReason::NotAuthorized), "{algorithm:?} {wrong}");
        }
    }
}

#[test]
fn a_key_verifies_only_algorithms_of_its_type() {
    let signer = Signer::new();
    for of_key in Algorithm::ALL {
        let key = signer.key(of_key);
        for algorithm in Algorithm::ALL {
            let is_same_type = key.algorithms().contains(&algorithm);
            let signature = signer.sign(algorithm, b"message");
            assert_eq!(
                key.verify(algorithm, b"message", &signature),
                is_same_type,
                "{of_key:?} {algorithm:?}"
            );
        }
    }
}

#[test]
fn a_public_key_is_never_a_secret() {
    let signer = Signer::new();
    let provider = provider(signer.key(Algorithm::Rs256));
    let public: PublicKeyComponents<Vec<u8>> = signer.rsa.public().into();
    let der = signer.rsa.public().as_ref().to_vec();
    let signed = format!("{}.{}", part(&json!({"alg": "HS256"})), part(&json!({"sub": "x"})));
    for secret in [der.as_slice(), &public.n, spki_pem(&der).as_bytes()] {
        let signature = hmac(ring::hmac::HMAC_SHA256, secret, signed.as_bytes());
        let denied = denial(ask(&provider, &format!("{signed}.{}", base64(&signature))));
        assert_eq!(denied, Some(DenyReason::NotAuthorized));
    }
}

#[test]
fn unsigned_and_extended_tokens_are_rejected() {
    let signer = Signer::new();
    let provider = provider(signer.key(Algorithm::Hs256));
    let claims = json!({"sub": "x"});
    let public = base64(signer.ed25519.public_key().as_ref());
    for header in [
        json!({"alg": "none"}),
        json!({"alg": "None"}),
        json!({"alg": "hs256"}),
        json!({"alg": ""}),
        json!({"alg": ["HS256"]}),
        json!({}),
        json!({"alg": "ES256K"}),
        json!({"alg": "RS256"}),
        json!({"alg": "HS256", "crit": ["exp"]}),
        json!({"alg": "HS256", "crit": []}),
        json!({"alg": "HS256", "b64": false}),
        json!({"alg": "HS256", "kid": 7}),
    ] {
        let token = signer.token_with(Algorithm::Hs256, &header, &claims);
        assert_eq!(
            denial(ask(&provider, &token)),
            Some(DenyReason::NotAuthorized),
            "{header}"
        );
        let (signed, _) = token.rsplit_once('.').expect("a token");
        assert!(denial(ask(&provider, &format!("{signed}."))).is_some(), "{header}");
    }
    // Keys in the header are not used, neither to accept nor to reject.
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": public});
    let header = json!({"alg": "EdDSA", "jwk": jwk, "jku": "https://example.org/keys", "x5u": "https://example.org"});
    let token = signer.token_with(Algorithm::EdDsa, &header, &claims);
    assert_eq!(denial(ask(&provider, &token)), Some(DenyReason::NotAuthorized));
}

#[test]
fn other_passwords_are_ignored() {
    let signer = Signer::new();
    let provider = provider(signer.key(Algorithm::Hs256));
    for password in [
        "",
        "secret",
        "a.b.c",
        "..",
        "eyJ.x.y",
        "e30",
        "e30.e30",
        "e30.e30.e30.e30",
        "W10.e30.x",
    ] {
        let ignored = ask(&provider, password);
        assert!(matches!(ignored, ProviderOutcome::Ignore), "{password}: {ignored:?}");
        let now = provider.authenticate_now(&credentials(password));
        assert!(matches!(now, Some(ProviderOutcome::Ignore)), "{password}: {now:?}");
    }
    let mut nobody = credentials("");
    nobody.password = None;
    assert!(matches!(
        provider.authenticate_now(&nobody),
        Some(ProviderOutcome::Ignore)
    ));
    nobody.password = Some(Password::new([0xFF, b'.', b'.']));
    assert!(matches!(
        provider.authenticate_now(&nobody),
        Some(ProviderOutcome::Ignore)
    ));
}

#[test]
fn the_length_of_a_token_is_bounded() {
    let signer = Signer::new();
    let provider = provider(signer.key(Algorithm::Hs256));
    let token = |length| signer.token(Algorithm::Hs256, &json!({"x": "y".repeat(length)}));
    assert!(matches!(ask(&provider, &token(10_000)), ProviderOutcome::Allow(_)));
    assert_eq!(denial(ask(&provider, &token(13_000))), Some(DenyReason::NotAuthorized));
}

#[test]
fn allowed_algorithms_must_fit_the_key() {
    let signer = Signer::new();
    let with = |key: Algorithm, algorithms: &[Algorithm]| {
        JwtProvider::new(JwtConfig {
            algorithms: algorithms.to_vec(),
            ..config(JwtKeys::Fixed(signer.key(key)))
        })
    };
    let error = with(Algorithm::Rs256, &[Algorithm::Rs256, Algorithm::Hs256])
        .err()
        .expect("an error");
    assert!(error.starts_with("algorithms: found HS256, expected"), "{error}");
    let only = Arc::new(with(Algorithm::Rs256, &[Algorithm::Ps256]).expect("valid"));
    let claims = json!({"sub": "x"});
    assert!(denial(ask(&only, &signer.token(Algorithm::Rs256, &claims))).is_some());
    assert!(denial(ask(&only, &signer.token(Algorithm::Ps256, &claims))).is_none());
}

#[test]
fn weak_keys_are_refused() {
    assert_eq!(VerificationKey::secret(&[1; 31]).err(), Some(KeyError::SecretBytes(31)));
    let bits = |bits: usize| {
        let key = VerificationKey::secret(&vec![1; bits / 8]).expect("long enough");
        key.algorithms().len()
    };
    assert_eq!([256, 376, 384, 504, 512].map(bits), [1, 1, 2, 2, 3]);
    let mut modulus = vec![0xFF; 256];
    assert!(VerificationKey::rsa(&modulus, &[1, 0, 1]).is_ok());
    modulus[0] = 0x7F;
    assert_eq!(
        VerificationKey::rsa(&modulus, &[1, 0, 1]).err(),
        Some(KeyError::RsaBits(2047))
    );
    assert_eq!(VerificationKey::rsa(&[], &[1, 0, 1]).err(), Some(KeyError::RsaBits(0)));
    assert_eq!(VerificationKey::p256(&[4; 64]).err(), Some(KeyError::Malformed));
    assert_eq!(VerificationKey::p384(&[2; 97]).err(), Some(KeyError::Malformed));
    assert_eq!(VerificationKey::ed25519(&[1; 31]).err(), Some(KeyError::Malformed));
}

/// DER of an element.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut bytes = match length {
        0..0x80 => vec![tag, length as u8],
        0x80..0x100 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    bytes.extend_from_slice(content);
    bytes
}

/// SubjectPublicKeyInfo in PEM. `parameters` are encoded.
fn pem(algorithm: &[u8], parameters: &[u8], key: &[u8]) -> String {
    let identifier = element(0x30, &[&element(6, algorithm), parameters].concat());
    let spki = element(0x30, &[identifier, element(3, &[&[0], key].concat())].concat());
    let text = base64ct::Base64::encode_string(&spki);
    format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
}

fn spki_pem(rsa_der: &[u8]) -> String {
    pem(&[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 1, 1], &[5, 0], rsa_der)
}

#[test]
fn keys_are_read_from_pem() {
    let signer = Signer::new();
    let (ec, p256, p384) = (
        [0x2A, 0x86, 0x48, 0xCE, 0x3D, 2, 1],
        [0x2A, 0x86, 0x48, 0xCE, 0x3D, 3, 1, 7],
        [0x2B, 0x81, 4, 0, 0x22],
    );
    for (algorithm, pem) in [
        (Algorithm::Rs256, spki_pem(signer.rsa.public().as_ref())),
        (
            Algorithm::Es256,
            pem(&ec, &element(6, &p256), signer.p256.public_key().as_ref()),
        ),
        (
            Algorithm::Es384,
            pem(&ec, &element(6, &p384), signer.p384.public_key().as_ref()),
        ),
        (
            Algorithm::EdDsa,
            pem(&[0x2B, 0x65, 0x70], &[], signer.ed25519.public_key().as_ref()),
        ),
    ] {
        let key = key_of_pem(pem.as_bytes()).expect("a key");
        assert!(
            key.verify(algorithm, b"m", &signer.sign(algorithm, b"m")),
            "{algorithm:?}"
        );
    }
    assert_eq!(key_of_pem(b"no key").err(), Some(KeyError::NoPublicKey));
    assert_eq!(
        key_of_pem(pem(&[1, 2, 3], &[], b"x").as_bytes()).err(),
        Some(KeyError::Unsupported)
    );
    assert_eq!(
        key_of_pem(pem(&ec, &element(6, &p256), b"x").as_bytes()).err(),
        Some(KeyError::Malformed)
    );
    // Every truncation of a key is an error, not a panic.
    let spki = base64ct::Base64::decode_vec(pem(&ec, &element(6, &p256), &[4; 65]).lines().nth(1).expect("a line"));
    let spki = spki.expect("base64");
    for length in 0..spki.len() {
        assert!(der::key_of_spki(&spki[..length]).is_err());
    }
}

#[test]
fn keys_are_read_from_certificates() {
    for (algorithm, signing) in [
        (Algorithm::Es256, &rcgen::PKCS_ECDSA_P256_SHA256),
        (Algorithm::Es384, &rcgen::PKCS_ECDSA_P384_SHA384),
        (Algorithm::EdDsa, &rcgen::PKCS_ED25519),
    ] {
        let key = rcgen::KeyPair::generate_for(signing).expect("a key");
        let parameters = rcgen::CertificateParams::new(["issuer".to_owned()]).expect("a name");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        let read = key_of_pem(certificate.pem().as_bytes()).expect("a key");
        assert_eq!(read.algorithms(), [algorithm]);
    }
}

#[test]
fn times_limit_a_token() {
    let now = now();
    let strict = |config: &mut JwtConfig| config.require_expiry = true;
    let denied = |claims: &Value| denial(outcome(strict, claims));
    assert_eq!(denied(&json!({"exp": now + 60})), None);
    assert_eq!(denied(&json!({"exp": (now + 60).to_string()})), None);
    assert_eq!(denied(&json!({"exp": now + 60, "nbf": now, "iat": now})), None);
    assert_eq!(denied(&json!({"exp": 1e300})), None);
    assert_eq!(denied(&json!({"exp": now})), Some(DenyReason::Expired));
    assert_eq!(denied(&json!({"exp": 0})), Some(DenyReason::Expired));
    assert_eq!(denied(&json!({"exp": -1})), Some(DenyReason::Expired));
    for claims in [
        json!({}),
        json!({"exp": null}),
        json!({"exp": "soon"}),
        json!({"exp": "NaN"}),
        json!({"exp": [now + 60]}),
        json!({"exp": now + 60, "nbf": now + 30}),
        json!({"exp": now + 60, "iat": now + 30}),
        json!({"exp": now + 60, "nbf": {}}),
    ] {
        assert_eq!(denied(&claims), Some(DenyReason::NotAuthorized), "{claims}");
    }
    let lenient = |config: &mut JwtConfig| config.leeway = Duration::from_secs(60);
    assert_eq!(
        denial(outcome(lenient, &json!({"exp": now - 10, "nbf": now + 30}))),
        None
    );
    assert_eq!(
        denial(outcome(lenient, &json!({"exp": now - 61}))),
        Some(DenyReason::Expired)
    );
    assert_eq!(denial(outcome(|_| (), &json!({}))), None);
}

#[test]
fn the_login_ends_with_the_token() {
    let exp = now() + 60;
    let at = |seconds| Some(UNIX_EPOCH + Duration::from_secs(seconds));
    let expires = |change: &dyn Fn(&mut JwtConfig)| login(outcome(change, &json!({"exp": exp}))).expires_at;
    assert_eq!(expires(&|_| ()), at(exp));
    assert_eq!(expires(&|config| config.leeway = Duration::from_secs(5)), at(exp + 5));
    assert_eq!(expires(&|config| config.disconnect_after_expiry = false), None);
    assert_eq!(login(outcome(|_| (), &json!({}))).expires_at, None);
}

#[test]
fn claims_are_compared_exactly() {
    let template = |text: &str| Template::parse(text).expect("a valid template");
    let check = |name: &str, expected: &str, claims: &Value| {
        let verify = vec![(name.to_owned(), template(expected))];
        denial(outcome(|config| config.verify_claims = verify, claims)).is_none()
    };
    assert!(check("u", "${username}", &json!({"u": "ann"})));
    assert!(check("u", "x-${clientid}/${username}", &json!({"u": "x-c1/ann"})));
    assert!(check(
        "iss",
        "https://example.org",
        &json!({"iss": "https://example.org"})
    ));
    assert!(check("aud", "mqtt", &json!({"aud": ["web", "mqtt"]})));
    for (name, expected, claims) in [
        ("u", "${username}", json!({"u": "Ann"})),
        ("u", "${username}", json!({"u": "ann "})),
        ("u", "${username}", json!({"u": ["ann"]})),
        ("u", "${username}", json!({"u": null})),
        ("u", "${username}", json!({})),
        ("level", "3", json!({"level": 3})),
        ("u", "${cert_common_name}", json!({"u": ""})),
        ("u", "", json!({"u": ""})),
        ("aud", "mqtt", json!({"aud": []})),
        ("aud", "mqtt", json!({"aud": "mqt"})),
    ] {
        assert!(!check(name, expected, &claims), "{name} {expected} {claims}");
    }
    for unknown in ["${password}", "${client_attrs.tenant}"] {
        let verify_claims = vec![("u".to_owned(), template(unknown))];
        let key = Signer::new().key(Algorithm::Hs256);
        let config = JwtConfig {
            verify_claims,
            ..config(JwtKeys::Fixed(key))
        };
        let error = JwtProvider::new(config).err().expect("an error");
        assert!(error.starts_with("verify_claims.u: ${"), "{error}");
    }
}

#[test]
fn a_claim_can_be_the_user_name() {
    let of_claim = |config: &mut JwtConfig| {
        config.user_name_claim = Some("sub".to_owned());
        config.verify_claims = vec![("u".to_owned(), Template::parse("${username}").expect("valid"))];
    };
    let found = login(outcome(of_claim, &json!({"sub": "bob", "u": "bob"})));
    assert_eq!(found.user_name.as_deref(), Some("bob"));
    for claims in [
        json!({"sub": "bob", "u": "ann"}),
        json!({"u": "ann"}),
        json!({"sub": "", "u": ""}),
        json!({"sub": 1, "u": "1"}),
        json!({"sub": "a\0", "u": "a\0"}),
    ] {
        assert!(denial(outcome(of_claim, &claims)).is_some(), "{claims}");
    }
    let without = JwtConfig {
        from: TokenField::UserName,
        ..config(JwtKeys::Fixed(Signer::new().key(Algorithm::Hs256)))
    };
    assert!(JwtProvider::new(without).is_err());
}

#[test]
fn rights_are_read_from_claims() {
    let superuser = |value: Value| login(outcome(|_| (), &json!({"is_superuser": value}))).is_superuser;
    for value in [json!(true), json!("true"), json!(1), json!("1"), json!(2)] {
        assert!(superuser(value.clone()), "{value}");
    }
    for value in [
        json!(false),
        json!("false"),
        json!(0),
        json!("0"),
        json!(""),
        json!(null),
        json!("yes"),
        json!([1]),
    ] {
        assert!(!superuser(value.clone()), "{value}");
    }
    let attributes = login(outcome(|_| (), &json!({"client_attrs": {"tenant": "t1"}}))).attributes;
    assert_eq!(attributes.get("tenant"), Some("t1"));
    let ruled = login(outcome(
        |config| config.acl_claim = "rights".to_owned(),
        &json!({"rights": {"pub": ["a"]}, "acl": 7}),
    ));
    assert!(ruled.rules.is_some());
    assert!(login(outcome(|_| (), &json!({}))).rules.is_none());
    for claims in [
        json!({"client_attrs": {"tenant": 1}}),
        json!({"client_attrs": "t1"}),
        json!({"client_attrs": {"a": "x".repeat(9000)}}),
        json!({"acl": "all"}),
        json!({"acl": null}),
        json!({"acl": [{"permission": "maybe", "action": "publish", "topic": "a"}]}),
        json!({"acl": {"pub": ["a/#/b"]}}),
    ] {
        assert_eq!(
            denial(outcome(|_| (), &claims)),
            Some(DenyReason::NotAuthorized),
            "{claims}"
        );
    }
}

#[test]
fn verified_tokens_are_remembered_until_they_expire() {
    let signer = Signer::new();
    let provider = provider(signer.key(Algorithm::Es256));
    let token = signer.token(Algorithm::Es256, &json!({"sub": "x", "exp": now() + 600}));
    assert!(provider.authenticate_now(&credentials(&token)).is_none());
    login(ask(&provider, &token));
    login(provider.authenticate_now(&credentials(&token)).expect("remembered"));
    let expired = signer.token(Algorithm::Es256, &json!({"exp": now() - 600}));
    for _ in 0..2 {
        assert_eq!(denial(ask(&provider, &expired)), Some(DenyReason::Expired));
    }
    let again = provider.authenticate_now(&credentials(&expired)).and_then(denial);
    assert_eq!(again, Some(DenyReason::Expired));
    // Another client with this token is checked with its own values.
    let verify = vec![("u".to_owned(), Template::parse("${clientid}").expect("valid"))];
    let bound = Arc::new(
        JwtProvider::new(JwtConfig {
            verify_claims: verify,
            ..config(JwtKeys::Fixed(signer.key(Algorithm::Es256)))
        })
        .expect("valid"),
    );
    let token = signer.token(Algorithm::Es256, &json!({"u": "c1"}));
    login(ask(&bound, &token));
    let mut other = credentials(&token);
    other.client_id = "c2".to_owned();
    assert!(bound.authenticate_now(&other).and_then(denial).is_some());
}

#[test]
fn remembered_tokens_are_bounded() {
    let signer = Signer::new();
    let provider = provider(signer.key(Algorithm::Hs256));
    let token = |number: u32| signer.token(Algorithm::Hs256, &json!({"n": number}));
    for number in 0..500 {
        login(ask(&provider, &token(number)));
        // A token in use is not dropped.
        login(ask(&provider, &token(0)));
        provider.authenticate_now(&credentials(&token(0))).expect("remembered");
        assert!(provider.verified.len() <= 100);
    }
    assert!(provider.authenticate_now(&credentials(&token(1))).is_none());
    let verified = VerifiedTokens::new(0);
    let claims = Claims::read(&provider.rules, &serde_json::Map::new()).expect("valid");
    verified.insert(QuestionKey::of(&[b"a"]), 1, Arc::new(claims));
    assert_eq!(verified.len(), 0);
}

#[test]
fn new_keys_drop_remembered_tokens() {
    let verified = VerifiedTokens::new(10);
    let rules = &provider(Signer::new().key(Algorithm::Hs256)).rules;
    let claims = || Arc::new(Claims::read(rules, &serde_json::Map::new()).expect("valid"));
    let key = QuestionKey::of(&[b"a"]);
    verified.insert(key, 1, claims());
    assert!(verified.find(&key, 1).is_some());
    assert!(verified.find(&key, 2).is_none());
    verified.insert(QuestionKey::of(&[b"b"]), 2, claims());
    assert!(verified.find(&key, 2).is_none());
    verified.insert(key, 1, claims());
    assert!(verified.find(&key, 2).is_none() && verified.find(&key, 1).is_none());
}

fn jwk(signer: &Signer) -> Value {
    let point = signer.p256.public_key().as_ref();
    json!({"kty": "EC", "crv": "P-256", "x": base64(&point[1..33]), "y": base64(&point[33..]), "kid": "k1"})
}

#[test]
fn a_key_set_is_read() {
    let signer = Signer::new();
    let public: PublicKeyComponents<Vec<u8>> = signer.rsa.public().into();
    let rsa = json!({"kty": "RSA", "n": base64(&public.n), "e": base64(&public.e), "alg": "RS256", "use": "sig"});
    let ed25519 =
        json!({"kty": "OKP", "crv": "Ed25519", "x": base64(signer.ed25519.public_key().as_ref()), "kid": "k3"});
    let set = json!({"keys": [rsa, jwk(&signer), ed25519]}).to_string();
    let keys = jwks::parse(set.as_bytes(), &[]).expect("a set");
    assert!(keys.skipped.is_empty(), "{:?}", keys.skipped);
    let algorithms: Vec<_> = keys.keys.iter().map(|key| key.algorithms.clone()).collect();
    assert_eq!(
        algorithms,
        [vec![Algorithm::Rs256], vec![Algorithm::Es256], vec![Algorithm::EdDsa]]
    );
    let keys = Keys::new(keys.keys, 1);
    let is_signed = |algorithm: Algorithm, id: Option<&str>| {
        let mut header = json!({"alg": algorithm.name()});
        if let Some(id) = id {
            header["kid"] = json!(id);
        }
        let token = signer.token_with(algorithm, &header, &json!({}));
        let token = UnverifiedToken::parse(token.as_bytes()).expect("a token");
        let header = token.header.as_ref().expect("a header");
        keys.have_signed(&token, header)
    };
    assert!(is_signed(Algorithm::Es256, Some("k1")) && is_signed(Algorithm::Es256, None));
    assert!(!is_signed(Algorithm::Es256, Some("k3")) && !is_signed(Algorithm::Es256, Some("k9")));
    assert!(is_signed(Algorithm::EdDsa, Some("k3")) && is_signed(Algorithm::Rs256, Some("any")));
    assert!(!is_signed(Algorithm::Rs384, None), "the key is only for RS256");
    let restricted = jwks::parse(set.as_bytes(), &[Algorithm::Es256]).expect("a set");
    assert_eq!(restricted.keys.len(), 1);
}

#[test]
fn unusable_keys_of_a_set_are_skipped() {
    let signer = Signer::new();
    let with = |name: &str, value: Value| {
        let mut key = jwk(&signer);
        key[name] = value;
        key
    };
    for key in [
        json!({"kty": "oct", "k": base64(SECRET), "alg": "HS256"}),
        json!({"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}),
        json!({"kty": "AKP"}),
        json!({}),
        json!("text"),
        with("use", json!("enc")),
        with("key_ops", json!(["sign"])),
        with("alg", json!("RS256")),
        with("alg", json!("HS256")),
        with("alg", json!("none")),
        with("x", json!("AA")),
        with("y", json!("not base64!")),
    ] {
        let set = json!({"keys": [key, jwk(&signer)]}).to_string();
        let parsed = jwks::parse(set.as_bytes(), &[]).expect("a set");
        assert_eq!((parsed.keys.len(), parsed.skipped.len()), (1, 1), "{key}");
    }
    for garbage in ["", "[]", "<html>", "{}", r#"{"keys": {}}"#, "null"] {
        assert!(jwks::parse(garbage.as_bytes(), &[]).is_err(), "{garbage}");
    }
    let many: Vec<Value> = (0..100).map(|_| jwk(&signer)).collect();
    assert_eq!(
        jwks::parse(json!({"keys": many}).to_string().as_bytes(), &[])
            .expect("a set")
            .keys
            .len(),
        32
    );
}

#[test]
fn errors_show_no_token() {
    let signer = Signer::new();
    let config = config(JwtKeys::Fixed(signer.key(Algorithm::Hs256)));
    assert!(format!("{config:?}").contains("VerificationKey(secret)"));
    assert!(!format!("{config:?}").contains("7, 7"));
}

/// Prints how many tokens per second one thread verifies: `cargo test --release -p tidewire-auth-providers
/// verifications_per_second -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout)]
fn verifications_per_second() {
    let signer = Signer::new();
    let claims = json!({"sub": "device-1", "exp": now() + 600, "acl": {"pub": ["d/${clientid}/#"], "sub": ["c/#"]}});
    for algorithm in Algorithm::ALL {
        let provider = provider(signer.key(algorithm));
        let token = signer.token(algorithm, &claims);
        let shared = Arc::new(credentials(&token));
        let rate = |count: u32, run: &dyn Fn()| {
            let start = std::time::Instant::now();
            (0..count).for_each(|_| run());
            f64::from(count) / start.elapsed().as_secs_f64()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let first = rate(2000, &|| {
            let outcome = runtime.block_on(provider.clone().authenticate(shared.clone()));
            assert!(matches!(outcome, ProviderOutcome::Allow(_)));
        });
        let again = rate(20_000, &|| {
            let outcome = provider.authenticate_now(&shared);
            assert!(matches!(outcome, Some(ProviderOutcome::Allow(_))));
        });
        println!(
            "{:6} {first:8.0}/s verified, {again:8.0}/s remembered",
            algorithm.name()
        );
    }
}
