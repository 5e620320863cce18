//! Options of authentication by JSON Web Tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use auth_providers::jwt::{Algorithm, VerificationKey, key_of_pem};
use base64ct::{Base64, Encoding};
use connectors::Secret;

use super::ProviderKind;
use crate::config::Config;
use crate::config::key::KeySegment::Fixed;
use crate::config::key::OptionKey;
use crate::config::option::{Apply, Kind, OptionDef, Section, section};
use crate::config::value::{Limit, Unset, choice};

choice! {
    /// Where clients send their token.
    pub enum TokenFrom { Password = "password", UserName = "username" }
}

choice! {
    /// Signature algorithm of a token.
    pub enum JwtAlgorithm {
        Hs256 = "HS256",
        Hs384 = "HS384",
        Hs512 = "HS512",
        Rs256 = "RS256",
        Rs384 = "RS384",
        Rs512 = "RS512",
        Ps256 = "PS256",
        Ps384 = "PS384",
        Ps512 = "PS512",
        Es256 = "ES256",
        Es384 = "ES384",
        EdDsa = "EdDSA",
    }
}

section! {
    /// Authentication by JSON Web Tokens, with `jwt` in `access.providers`. Set one of `secret`, `public_key_file` and
    /// `jwks_url`.
    pub struct Jwt at [Fixed("access"), Fixed("jwt")] {
        /// Field of CONNECT with the token: `password` or `username`. With `username`, `user_name_claim` is the name of
        /// the session, and the token appears in no log, event or API answer.
        restart from: TokenFrom = "password";
        /// Shared secret of tokens with HS256, HS384 or HS512: at least 32, 48 or 64 bytes. Each client that has it can
        /// make tokens.
        restart secret: Unset<Secret> = "";
        /// Whether `secret` is Base64 text. Otherwise its bytes are the secret.
        restart secret_base64_encoded: bool = "false";
        /// File with the public key of the issuer, or its certificate, in PEM format: RSA with at least 2048 bits,
        /// ECDSA with P-256 or P-384, or Ed25519. The server reads it at the start.
        restart public_key_file: Unset<PathBuf> = "";
        /// URL of a JSON Web Key Set with the public keys of the issuer. While the server has no keys, clients with a
        /// token are rejected with 0x88 (Server unavailable).
        restart jwks_url: Unset<String> = "";
        /// Time between two requests to `jwks_url`. A token with an unknown key id causes a request at once, at most
        /// one every 2 seconds.
        restart refresh_interval: Duration = "5m" ["10s", "1d"];
        /// How long keys are used that `jwks_url` does not confirm, for example because its server does not answer.
        restart max_key_age: Limit<Duration> = "1d" ["1m", "365d"];
        /// Time limit of a request to `jwks_url`, and of a login that waits for it.
        restart timeout: Duration = "5s" ["100ms", "1m"];
        /// File with the CA certificates that `jwks_url` is verified with, in PEM format. Default: the certificates
        /// that the operating system trusts.
        restart ca_file: Unset<PathBuf> = "";
        /// Allowed algorithms, such as `["RS256", "ES256"]`. Empty: all that the key can verify. A token cannot choose
        /// another one.
        restart algorithms: Vec<JwtAlgorithm> = "";
        /// Claim that is the user name of the session. Empty: with `from = "username"`, the claim `sub`; with
        /// `from = "password"`, the user name of CONNECT, which only `verify_claims` verifies.
        restart user_name_claim: String = "";
        /// Reject tokens without `exp`. A token without `exp` cannot be revoked unless the key is replaced.
        restart require_expiry: bool = "true";
        /// Tolerance for different clocks, for `exp`, `nbf` and `iat`.
        restart leeway: Duration = "5s" ["0s", "10m"];
        /// Disconnect a client when its token expires. MQTT 5 clients get the reason code 0xA0 (Maximum connect time).
        restart disconnect_after_expire: bool = "true";
        /// Claim with access rules in one of the two formats of EMQX. They are checked before `access.rules`.
        restart acl_claim_name: String = "acl";
        /// Claim with the groups of the client, for the condition `groups` of access rules: an array of texts, or one
        /// text. Dots lead to a claim in a claim, such as `realm_access.roles`. Tokens without it have no groups; a
        /// token in which it has another form is rejected. Empty: groups are not used.
        restart groups_claim: Unset<String> = "groups";
        /// Maximum number of verified tokens that the server remembers, so that a client that reconnects with the same
        /// token costs no signature check. Each takes up to a few kilobytes, depending on its access rules.
        restart cache_size: u32 = "100000" ["0", "1000000"] in "tokens";
    }
}

/// `access.jwt.verify_claims.<claim>`: a table with free keys, so not a struct.
pub const CLAIMS: Section = Section {
    path: &[Fixed("access"), Fixed("jwt"), Fixed("verify_claims")],
    doc: &[" Claims that tokens must have."],
    options: &[OptionDef {
        name: "<claim>",
        doc: &[
            " The text that the claim must equal, with the placeholders `${username}`, `${clientid}`, `${peerhost}`,",
            " `${cert_common_name}` and `${cert_subject}`. `aud` may also be a list that contains the text.",
        ],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Restart,
        kind: Kind::of::<String>(),
    }],
};

impl Jwt {
    /// Returns the problems of the keys, each with its option.
    pub fn problems(config: &Config) -> Vec<(OptionKey, String)> {
        let jwt = &config.jwt;
        let is_used = config.provider_kinds().contains(&ProviderKind::Jwt);
        let option = |name| OptionKey::of(&["access", "jwt", name]);
        let sources = [
            ("secret", jwt.secret.0.is_some()),
            ("public_key_file", jwt.public_key_file.0.is_some()),
            ("jwks_url", jwt.jwks_url.0.is_some()),
        ];
        let mut set = sources.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name);
        let mut problems = Vec::new();
        match (set.next(), set.next()) {
            (None, _) if is_used => {
                let message = "is missing: the provider `jwt` needs `secret`, `public_key_file` or `jwks_url`";
                problems.push((option("secret"), message.to_owned()));
            }
            (Some(first), Some(second)) => {
                let message = format!("cannot be set together with `access.jwt.{first}`: keys have one source");
                problems.push((option(second), message));
            }
            _ => {}
        }
        if let Some(Err(problem)) = jwt.secret_key() {
            problems.push((option("secret"), problem));
        }
        problems
    }

    /// Returns the key that `secret` defines.
    pub fn secret_key(&self) -> Option<Result<VerificationKey, String>> {
        let text = self.secret.0.as_ref()?.expose();
        let key = match self.secret_base64_encoded {
            false => VerificationKey::secret(text.as_bytes()),
            true => match Base64::decode_vec(text.trim()) {
                Ok(bytes) => VerificationKey::secret(&bytes),
                Err(_) => return Some(Err("is not Base64 text, as `secret_base64_encoded` requires".to_owned())),
            },
        };
        Some(key.map_err(|error| error.to_string()))
    }

    pub fn allowed_algorithms(&self) -> Vec<Algorithm> {
        let algorithms = self.algorithms.iter();
        algorithms
            .filter_map(|algorithm| Algorithm::of_name(algorithm.word()))
            .collect()
    }
}

/// Reads a public key or a certificate. The error names the file.
pub fn read_public_key(path: &Path) -> Result<VerificationKey, String> {
    let pem = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    key_of_pem(&pem).map_err(|error| format!("{}: {error}", path.display()))
}
