//! Fuzzes tokens and key sets. The modules are compiled here, because the crate of the providers needs a runtime and
//! TLS.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "modules/jwt.rs"]
mod jwt;

use jwt::algorithm::Algorithm;
use jwt::jwks;
use jwt::key::VerificationKey;
use jwt::token::UnverifiedToken;

fuzz_target!(|bytes: &[u8]| {
    let secret = VerificationKey::secret(&[7; 64]).expect("the secret is long enough");
    let mut keys = vec![(secret, Algorithm::HMAC.to_vec())];
    let (set, token) = match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, bytes),
    };
    if let Ok(parsed) = jwks::parse(set, &[]) {
        for skipped in &parsed.skipped {
            assert!(!skipped.to_string().is_empty());
        }
        for key in parsed.keys {
            let is_of_type = |algorithm: &Algorithm| key.key.algorithms().contains(algorithm);
            assert!(!key.algorithms.is_empty() && key.algorithms.iter().all(is_of_type));
            // A published secret would allow everyone to sign tokens.
            assert!(
                !key.algorithms
                    .iter()
                    .any(|algorithm| Algorithm::HMAC.contains(algorithm))
            );
            keys.push((key.key, key.algorithms));
        }
    }
    let Some(token) = UnverifiedToken::parse(token) else {
        return;
    };
    let _ = token.claims();
    let Ok(header) = &token.header else { return };
    for (key, algorithms) in keys {
        if algorithms.contains(&header.algorithm) {
            // The keys of a set are those of the fuzzer, which could have signed. It does not know the secret.
            let is_signed = token.is_signed_by(&key, header.algorithm);
            assert!(!is_signed || !Algorithm::HMAC.contains(&header.algorithm));
        } else {
            assert!(!token.is_signed_by(&key, header.algorithm), "a key of another type");
        }
    }
});
