//! Time-based one-time passwords (RFC 6238) with HMAC-SHA-1, 30 seconds and six digits. All authenticator apps support
//! these parameters.

use std::fmt;

use data_encoding::BASE32_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha1::Sha1;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const PERIOD_S: u64 = 30;
pub const TOTP_DIGITS: usize = 6;
const CODES: u32 = 1_000_000;
/// Length of the hash (RFC 4226, section 4).
const SECRET_BYTES: usize = 20;
/// Accepted difference between the clocks of the server and the app, in periods.
const DRIFT_STEPS: u64 = 1;

/// The secret that the server shares with an authenticator app. It is wiped when it is dropped. As JSON it is base32
/// text.
#[derive(Clone)]
pub struct TotpSecret(Zeroizing<[u8; SECRET_BYTES]>);

impl TotpSecret {
    /// `None`: the operating system returned no random bytes.
    pub fn random() -> Option<TotpSecret> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        getrandom::fill(&mut *secret).ok()?;
        Some(TotpSecret(secret))
    }

    /// Reads base32 text (RFC 4648) without padding.
    pub fn of_base32(text: &str) -> Option<TotpSecret> {
        let bytes = Zeroizing::new(BASE32_NOPAD.decode(text.as_bytes()).ok()?);
        Some(TotpSecret(Zeroizing::new(bytes.as_slice().try_into().ok()?)))
    }

    pub fn to_base32(&self) -> Zeroizing<String> {
        Zeroizing::new(BASE32_NOPAD.encode(&*self.0))
    }

    pub fn expose(&self) -> &[u8] {
        &*self.0
    }

    /// Returns the time step of a code that is valid now: the present step, or one of its neighbours.
    pub fn find_step(&self, code: &str, unix_s: u64) -> Option<u64> {
        let now = unix_s / PERIOD_S;
        let steps = now.saturating_sub(DRIFT_STEPS)..=now.saturating_add(DRIFT_STEPS);
        // All steps are compared, so that the time does not depend on the code.
        steps.fold(None, |found, step| {
            let is_equal: bool = self.code(step).as_bytes().ct_eq(code.as_bytes()).into();
            if is_equal { Some(step) } else { found }
        })
    }

    /// Returns the code that an app shows at this time.
    pub fn code_at(&self, unix_s: u64) -> Zeroizing<String> {
        self.code(unix_s / PERIOD_S)
    }

    /// Returns the code of a time step (RFC 4226, section 5.3).
    fn code(&self, step: u64) -> Zeroizing<String> {
        let mut mac = Hmac::<Sha1>::new_from_slice(&*self.0).expect("HMAC takes a key of any length");
        mac.update(&step.to_be_bytes());
        let hash = mac.finalize().into_bytes();
        let offset = usize::from(hash[hash.len() - 1] & 0xf);
        let bytes = [hash[offset], hash[offset + 1], hash[offset + 2], hash[offset + 3]];
        let number = u32::from_be_bytes(bytes) & 0x7fff_ffff;
        Zeroizing::new(format!("{:0TOTP_DIGITS$}", number % CODES))
    }
}

impl fmt::Debug for TotpSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for TotpSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_base32())
    }
}

impl<'de> Deserialize<'de> for TotpSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TotpSecret, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        TotpSecret::of_base32(&text).ok_or_else(|| D::Error::custom("a secret must be base32 text of 20 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The secret of the test vectors.
    fn secret() -> TotpSecret {
        TotpSecret(Zeroizing::new(*b"12345678901234567890"))
    }

    #[test]
    fn codes_are_those_of_rfc_6238() {
        // Appendix B. Its codes have eight digits; a code with six digits is the end of it.
        for (unix_s, eight) in [
            (59, "94287082"),
            (1_111_111_109, "07081804"),
            (1_111_111_111, "14050471"),
            (1_234_567_890, "89005924"),
            (2_000_000_000, "69279037"),
            (20_000_000_000, "65353130"),
        ] {
            assert_eq!(*secret().code_at(unix_s), eight[2..], "{unix_s}");
            assert_eq!(secret().find_step(&eight[2..], unix_s), Some(unix_s / PERIOD_S));
        }
    }

    #[test]
    fn codes_are_those_of_rfc_4226() {
        // Appendix D.
        let codes = [
            "755224", "287082", "359152", "969429", "338314", "254676", "287922", "162583", "399871", "520489",
        ];
        for (step, code) in (0..).zip(codes) {
            assert_eq!(*secret().code(step), code, "{step}");
        }
    }

    #[test]
    fn one_period_of_drift_is_accepted() {
        let found = |unix_s| secret().find_step("338314", unix_s);
        for (unix_s, step) in [(89, None), (90, Some(4)), (149, Some(4)), (179, Some(4)), (180, None)] {
            assert_eq!(found(unix_s), step, "{unix_s}");
        }
        assert_eq!(secret().find_step("755224", 0), Some(0));
        for wrong in ["", "33831", "3383144", " 338314", "338315"] {
            assert_eq!(secret().find_step(wrong, 120), None, "{wrong}");
        }
    }

    #[test]
    fn secret_is_base32_text_and_never_printed() {
        let text = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";
        assert_eq!(*secret().to_base32(), text);
        assert_eq!(TotpSecret::of_base32(text).unwrap().expose(), secret().expose());
        for wrong in [
            "",
            "GEZDGNBV",
            "gezdgnbvgy3tqojqgezdgnbvgy3tqojq",
            "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJ1",
        ] {
            assert!(TotpSecret::of_base32(wrong).is_none(), "{wrong}");
        }
        assert_eq!(format!("{:?}", secret()), "***");
        let (a, b) = (TotpSecret::random().unwrap(), TotpSecret::random().unwrap());
        assert_ne!(a.expose(), b.expose());
    }
}
