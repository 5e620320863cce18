//! A password as received from a client or an operator.
//!
//! It is displayed as `***` and wiped from memory when dropped. It has no equality; [`crate::PasswordHash`] does
//! comparisons.

use std::fmt;

use zeroize::Zeroizing;

/// The Password field of CONNECT. Binary data, not text [MQTT-3.1.3.6].
#[derive(Clone)]
pub struct Password(Zeroizing<Vec<u8>>);

impl Password {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Password {
        Password(Zeroizing::new(bytes.into()))
    }

    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_never_prints_its_bytes() {
        let password = Password::new("hunter2");
        assert_eq!(format!("{password} {password:?}"), "*** ***");
        assert_eq!(format!("{:?}", Some(&password)), "Some(***)");
    }
}
