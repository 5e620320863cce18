//! JSON Web Key Sets (RFC 7517). Keys that cannot be used are skipped: a server may publish keys for other purposes.

use std::collections::BTreeSet;
use std::fmt;

use base64ct::{Base64UrlUnpadded, Encoding};
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::key::{KeyError, VerificationKey};

/// Maximum number of keys of a set that are used. A token without a key id is checked with each of them.
const KEYS_MAX: usize = 32;

/// A key with the algorithms for which it may be used.
#[derive(Debug)]
pub struct SetKey {
    pub id: Option<String>,
    pub key: VerificationKey,
    pub algorithms: Vec<Algorithm>,
}

/// The usable keys of a set, and the reasons why others were skipped.
#[derive(Debug, Default)]
pub struct ParsedKeys {
    pub keys: Vec<SetKey>,
    pub skipped: BTreeSet<Skipped>,
}

/// Why a key is skipped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skipped {
    /// For encryption.
    OtherUse,
    /// A set with a shared secret is not secret: whoever reads it can sign tokens.
    Secret,
    UnknownType(String),
    UnknownAlgorithm(String),
    /// The algorithm of the key is not in `access.jwt.algorithms`, or not for this type of key.
    AlgorithmNotAllowed,
    Invalid(String),
    TooMany,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skipped::OtherUse => f.write_str("a key is not for signatures"),
            Skipped::Secret => f.write_str("a key is a shared secret, which is not trusted in a key set"),
            Skipped::UnknownType(name) => write!(f, "a key has the unknown type {name:?}"),
            Skipped::UnknownAlgorithm(name) => write!(f, "a key has the unknown algorithm {name:?}"),
            Skipped::AlgorithmNotAllowed => f.write_str("the algorithm of a key is not allowed"),
            Skipped::Invalid(reason) => write!(f, "a key is not valid: {reason}"),
            Skipped::TooMany => write!(f, "the set has more than {KEYS_MAX} keys"),
        }
    }
}

/// Reads a set. `allowed` restricts the algorithms. The error says why this is not a set.
pub fn parse(bytes: &[u8], allowed: &[Algorithm]) -> Result<ParsedKeys, String> {
    let set: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(|_| "expected a JSON object with keys".to_owned())?;
    let Some(Value::Array(entries)) = set.get("keys") else {
        return Err("expected a JSON object with the array \"keys\"".to_owned());
    };
    let mut parsed = ParsedKeys::default();
    for entry in entries {
        if parsed.keys.len() == KEYS_MAX {
            parsed.skipped.insert(Skipped::TooMany);
            break;
        }
        match set_key(entry, allowed) {
            Ok(key) => parsed.keys.push(key),
            Err(reason) => {
                parsed.skipped.insert(reason);
            }
        }
    }
    Ok(parsed)
}

fn set_key(entry: &Value, allowed: &[Algorithm]) -> Result<SetKey, Skipped> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str);
    if text("use").is_some_and(|purpose| purpose != "sig") {
        return Err(Skipped::OtherUse);
    }
    if let Some(Value::Array(operations)) = entry.get("key_ops")
        && !operations.iter().any(|operation| operation == "verify")
    {
        return Err(Skipped::OtherUse);
    }
    let invalid = |error: KeyError| Skipped::Invalid(error.to_string());
    let number = |name: &str| {
        let bytes = text(name).and_then(|text| Base64UrlUnpadded::decode_vec(text).ok());
        bytes.ok_or_else(|| Skipped::Invalid(format!("{name} is missing or malformed")))
    };
    let point = |bytes: usize| -> Result<Vec<u8>, Skipped> {
        let (x, y) = (number("x")?, number("y")?);
        // RFC 7518, 6.2.1.2: the coordinates have their full length.
        if x.len() != bytes || y.len() != bytes {
            return Err(Skipped::Invalid("a coordinate has the wrong length".to_owned()));
        }
        Ok([vec![4], x, y].concat())
    };
    let key = match (text("kty").unwrap_or_default(), text("crv")) {
        ("RSA", _) => VerificationKey::rsa(&number("n")?, &number("e")?),
        ("EC", Some("P-256")) => VerificationKey::p256(&point(32)?),
        ("EC", Some("P-384")) => VerificationKey::p384(&point(48)?),
        ("OKP", Some("Ed25519")) => VerificationKey::ed25519(&number("x")?),
        ("oct", _) => return Err(Skipped::Secret),
        (kind, curve) => {
            let name = curve.map_or_else(|| kind.to_owned(), |curve| format!("{kind} {curve}"));
            return Err(Skipped::UnknownType(name.chars().take(40).collect()));
        }
    };
    let key = key.map_err(invalid)?;
    let algorithms = key_algorithms(&key, text("alg"), allowed)?;
    Ok(SetKey {
        id: text("kid").map(str::to_owned),
        key,
        algorithms,
    })
}

/// Returns the algorithms of a key: those of its type, restricted by its `alg` and by the configuration.
fn key_algorithms(
    key: &VerificationKey,
    of_key: Option<&str>,
    allowed: &[Algorithm],
) -> Result<Vec<Algorithm>, Skipped> {
    let mut algorithms = key.algorithms();
    algorithms.retain(|algorithm| allowed.is_empty() || allowed.contains(algorithm));
    if let Some(name) = of_key {
        let only = Algorithm::of_name(name);
        let only = only.ok_or_else(|| Skipped::UnknownAlgorithm(name.chars().take(40).collect()))?;
        algorithms.retain(|algorithm| *algorithm == only);
    }
    match algorithms.is_empty() {
        true => Err(Skipped::AlgorithmNotAllowed),
        false => Ok(algorithms),
    }
}
