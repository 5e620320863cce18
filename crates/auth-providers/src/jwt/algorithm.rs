//! Signature algorithms of tokens (RFC 7518, 3.1; RFC 8037).

/// A signature algorithm. The algorithm `none` does not exist here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    pub const ALL: [Algorithm; 12] = [
        Algorithm::Hs256,
        Algorithm::Hs384,
        Algorithm::Hs512,
        Algorithm::Rs256,
        Algorithm::Rs384,
        Algorithm::Rs512,
        Algorithm::Ps256,
        Algorithm::Ps384,
        Algorithm::Ps512,
        Algorithm::Es256,
        Algorithm::Es384,
        Algorithm::EdDsa,
    ];

    /// Algorithms with a shared secret.
    pub const HMAC: [Algorithm; 3] = [Algorithm::Hs256, Algorithm::Hs384, Algorithm::Hs512];

    /// Algorithms with an RSA key.
    pub const RSA: [Algorithm; 6] = [
        Algorithm::Rs256,
        Algorithm::Rs384,
        Algorithm::Rs512,
        Algorithm::Ps256,
        Algorithm::Ps384,
        Algorithm::Ps512,
    ];

    /// Name in the header of a token.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Hs256 => "HS256",
            Algorithm::Hs384 => "HS384",
            Algorithm::Hs512 => "HS512",
            Algorithm::Rs256 => "RS256",
            Algorithm::Rs384 => "RS384",
            Algorithm::Rs512 => "RS512",
            Algorithm::Ps256 => "PS256",
            Algorithm::Ps384 => "PS384",
            Algorithm::Ps512 => "PS512",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
            Algorithm::EdDsa => "EdDSA",
        }
    }

    /// Names are case-sensitive. RFC 9864 calls EdDSA with Ed25519 `Ed25519`.
    pub fn of_name(name: &str) -> Option<Algorithm> {
        match name {
            "Ed25519" => Some(Algorithm::EdDsa),
            _ => Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name),
        }
    }
}
