//! The modules of the provider `jwt` that decode and verify. Their crate needs a runtime and TLS.

#[path = "../../../crates/auth-providers/src/jwt/algorithm.rs"]
pub mod algorithm;
#[path = "../../../crates/auth-providers/src/jwt/jwks.rs"]
pub mod jwks;
#[path = "../../../crates/auth-providers/src/jwt/key.rs"]
pub mod key;
#[path = "../../../crates/auth-providers/src/jwt/token.rs"]
pub mod token;
