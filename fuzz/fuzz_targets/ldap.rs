//! Fuzzes answers of LDAP servers, and the text forms of filters and names. The modules are compiled here, because the
//! crate of the client needs a runtime and TLS.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "modules/ldap.rs"]
mod ldap;

use ldap::dn::LdapDn;
use ldap::filter::LdapFilter;
use ldap::message::{decode, message_length};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = decode(bytes) {
        assert_eq!(message_length(bytes), Ok(Some(bytes.len())));
        // A message does not depend on later bytes, and is incomplete without its last one.
        assert_eq!(message_length(&[bytes, b"x"].concat()), Ok(Some(bytes.len())));
        assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        assert_eq!(decode(bytes), Ok(message));
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(dn) = LdapDn::of(text) {
        let written = dn.render(&mut String::clone);
        let again = LdapDn::of(&written).expect("a written name can be parsed");
        assert_eq!(again.normalized(), dn.normalized());
        assert_eq!(again, dn);
    }
    if let Ok(filter) = LdapFilter::parse(text, &mut Ok) {
        let mut count = 0;
        filter.map(&mut |_| count += 1);
        assert!(count <= text.len());
    }
});
