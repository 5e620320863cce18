//! Tests without a realm. `tests/kerberos_logins` has those with a key distribution center.

use std::collections::HashSet;

use super::*;

fn error(major: u32, minor: u32) -> GssError {
    GssError {
        major,
        minor,
        text: String::new(),
    }
}

#[test]
fn principal_has_a_name_and_a_realm() {
    assert_eq!(realm_of("mqtt/host.example.com@EXAMPLE.COM"), Ok("EXAMPLE.COM"));
    assert_eq!(realm_of("mqtt@EXAMPLE.COM"), Ok("EXAMPLE.COM"));
    for wrong in [
        "",
        "mqtt",
        "mqtt/host",
        "mqtt/@REALM",
        "/host@REALM",
        "@REALM",
        "mqtt@",
        "a@b@c",
        "a\\@b@c",
        "a\0@c",
    ] {
        assert!(realm_of(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn each_reason_has_a_text_and_a_label() {
    let texts: HashSet<&str> = KerberosReason::ALL.into_iter().map(KerberosReason::text).collect();
    let labels: HashSet<&str> = KerberosReason::ALL.into_iter().map(KerberosReason::label).collect();
    assert_eq!(
        (texts.len(), labels.len()),
        (KerberosReason::ALL.len(), KerberosReason::ALL.len())
    );
}

#[test]
fn errors_of_the_library_have_reasons() {
    const FAILURE: u32 = 13 << 16;
    let krb5 = |number: i32| (-1_765_328_384_i32 + number).cast_unsigned();
    for (error, reason) in [
        (error(9 << 16, 0), KerberosReason::Malformed),
        (error(1 << 16, 0), KerberosReason::Mechanism),
        (error(2, 0), KerberosReason::Replayed),
        (error(FAILURE, krb5(32)), KerberosReason::Expired),
        (error(FAILURE, krb5(34)), KerberosReason::Replayed),
        (error(FAILURE, krb5(37)), KerberosReason::ClockSkew),
        (error(FAILURE, krb5(31)), KerberosReason::WrongKey),
        (error(FAILURE, krb5(144)), KerberosReason::WrongKey),
        (error(FAILURE, krb5(164)), KerberosReason::Unavailable),
        (error(FAILURE, 13), KerberosReason::Unavailable),
        (error(FAILURE, 1_859_794_437), KerberosReason::Malformed),
        (error(FAILURE, 0), KerberosReason::Malformed),
        (error(6 << 16, 0), KerberosReason::Malformed),
        (error(FAILURE, krb5(14)), KerberosReason::Other),
    ] {
        assert_eq!(KerberosReason::of_error(&error), reason, "{error:?}");
    }
}

#[test]
fn text_of_an_error_is_short_and_has_no_control_characters() {
    let text = gssapi::readable("Cannot decrypt ticket for a\u{1b}[2J\nb@\u{fffd}");
    assert_eq!(text, "Cannot decrypt ticket for a\u{fffd}[2J\u{fffd}b@\u{fffd}");
    assert_eq!(gssapi::readable(&"ü".repeat(48_000)).chars().count(), 500);
}

#[test]
fn missing_keytab_is_named() {
    let config = KerberosConfig {
        principal: "mqtt/host@EXAMPLE.COM".to_owned(),
        keytab_file: Some(PathBuf::from("/nonexistent/keytab")),
        strip_realm: false,
        disconnect_after_expire: false,
    };
    let error = KerberosAcceptor::new(&config).err().expect("there is no such file");
    assert!(
        error.starts_with("keytab_file: /nonexistent/keytab has no usable key of mqtt/host@EXAMPLE.COM: "),
        "{error}"
    );
    let config = KerberosConfig {
        principal: "mqtt".to_owned(),
        ..config
    };
    let error = KerberosAcceptor::new(&config).err().expect("the realm is missing");
    assert!(error.starts_with("principal: found \"mqtt\""), "{error}");
}
