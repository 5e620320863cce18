//! Reasons of rejections, for the log and for metrics.

use super::gssapi::{BAD_MECH, BAD_MIC, CREDENTIALS_EXPIRED, DEFECTIVE_TOKEN, FAILURE, GssError, NO_CRED};

/// Reason for the operator. The client learns nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KerberosReason {
    NoToken,
    TooLong,
    /// GSSAPI cannot read the message.
    Malformed,
    /// The token is of another mechanism, such as NTLM or SPNEGO.
    Mechanism,
    Expired,
    ClockSkew,
    Replayed,
    /// The server has no key that fits the ticket.
    WrongKey,
    /// The client sent a message that does not fit the step.
    OutOfOrder,
    SecurityLayer,
    /// The client wants to act as another user.
    AuthorizationIdentity,
    OtherUserName,
    /// The principal does not name a client.
    Anonymous,
    UserName,
    /// The Kerberos library of the server has failed.
    Unavailable,
    /// Another error of Kerberos.
    Other,
}

/// Codes of Kerberos begin here: the number of [RFC 4120, section 7.5.9] is added. From 128 on, the numbers are those
/// of MIT Kerberos.
const KRB5_BASE: u32 = (-1_765_328_384_i32).cast_unsigned();
/// Codes of the decoder begin here.
const ASN1_BASE: u32 = 1_859_794_432;
/// Larger codes are not those of the operating system.
const ERRNO_MAX: u32 = 255;

impl KerberosReason {
    pub const ALL: [KerberosReason; 16] = [
        KerberosReason::NoToken,
        KerberosReason::TooLong,
        KerberosReason::Malformed,
        KerberosReason::Mechanism,
        KerberosReason::Expired,
        KerberosReason::ClockSkew,
        KerberosReason::Replayed,
        KerberosReason::WrongKey,
        KerberosReason::OutOfOrder,
        KerberosReason::SecurityLayer,
        KerberosReason::AuthorizationIdentity,
        KerberosReason::OtherUserName,
        KerberosReason::Anonymous,
        KerberosReason::UserName,
        KerberosReason::Unavailable,
        KerberosReason::Other,
    ];

    /// Returns the text for the log.
    pub fn text(self) -> &'static str {
        match self {
            KerberosReason::NoToken => "the client sent no Kerberos token",
            KerberosReason::TooLong => "the Kerberos token is too long",
            KerberosReason::Malformed => "the Kerberos token is malformed",
            KerberosReason::Mechanism => "the token is not one of Kerberos",
            KerberosReason::Expired => "the Kerberos ticket has expired",
            KerberosReason::ClockSkew => "the clocks of the client and of the server differ too much for Kerberos",
            KerberosReason::Replayed => "the Kerberos token was used before",
            KerberosReason::WrongKey => {
                "the Kerberos ticket is damaged, for another principal, or its key is not in the keytab"
            }
            KerberosReason::OutOfOrder => "the Kerberos message does not fit the step of the exchange",
            KerberosReason::SecurityLayer => "the client wants a security layer of SASL, which MQTT cannot have",
            KerberosReason::AuthorizationIdentity => "the authorization identity is not the Kerberos principal",
            KerberosReason::OtherUserName => {
                "the user name of CONNECT or of the session is not that of the Kerberos principal"
            }
            KerberosReason::Anonymous => "the Kerberos principal is anonymous",
            KerberosReason::UserName => "the Kerberos principal has characters that are not allowed",
            KerberosReason::Unavailable => "the Kerberos library of the server has failed",
            KerberosReason::Other => "Kerberos has rejected the token",
        }
    }

    /// Returns the label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            KerberosReason::NoToken => "no_token",
            KerberosReason::TooLong => "too_long",
            KerberosReason::Malformed => "malformed",
            KerberosReason::Mechanism => "mechanism",
            KerberosReason::Expired => "expired",
            KerberosReason::ClockSkew => "clock_skew",
            KerberosReason::Replayed => "replayed",
            KerberosReason::WrongKey => "wrong_key",
            KerberosReason::OutOfOrder => "out_of_order",
            KerberosReason::SecurityLayer => "security_layer",
            KerberosReason::AuthorizationIdentity => "authorization_identity",
            KerberosReason::OtherUserName => "other_user_name",
            KerberosReason::Anonymous => "anonymous",
            KerberosReason::UserName => "user_name",
            KerberosReason::Unavailable => "unavailable",
            KerberosReason::Other => "other",
        }
    }

    /// Returns whether the server has failed, and not the client.
    pub fn is_failure(self) -> bool {
        self == KerberosReason::Unavailable
    }

    pub(super) fn of_error(error: &GssError) -> KerberosReason {
        if error.is_duplicate() {
            return KerberosReason::Replayed;
        }
        match error.routine_error() {
            BAD_MECH | NO_CRED => return KerberosReason::Mechanism,
            DEFECTIVE_TOKEN | BAD_MIC => return KerberosReason::Malformed,
            // The library has no code for a message that it cannot decode.
            FAILURE if error.minor == 0 => return KerberosReason::Malformed,
            CREDENTIALS_EXPIRED => return KerberosReason::Expired,
            _ => {}
        }
        // For other reasons, the library reports a general failure with the code of Kerberos or of the system.
        match error.minor.wrapping_sub(KRB5_BASE) {
            32 => KerberosReason::Expired,
            // A ticket that is not valid yet, and the skew itself.
            33 | 37 => KerberosReason::ClockSkew,
            34 | 163 => KerberosReason::Replayed,
            // Integrity, another server, other addresses or keys, and no key in the keytab.
            31 | 35 | 36 | 41 | 44 | 45 | 144 | 181 => KerberosReason::WrongKey,
            // Version and type of the message.
            39 | 40 => KerberosReason::Malformed,
            // The replay cache cannot be read or written.
            159..=172 => KerberosReason::Unavailable,
            _ if (1..=ERRNO_MAX).contains(&error.minor) => KerberosReason::Unavailable,
            _ if error.minor.wrapping_sub(ASN1_BASE) <= 0xFF => KerberosReason::Malformed,
            _ => KerberosReason::Other,
        }
    }
}
