//! Administrators of the node in a tenant: the console lets them in as a user of the tenant that it makes for the login,
//! `console-<name>.<random>@tidewire.invalid` (`enter` in `ui/src/platform/tenancy.svelte.ts`). Such a user is good for as long as
//! the one of the console whom it stands for administers the node, with the password of then.

use crate::admins::Admins;

const PREFIX: &str = "console-";
const DOMAIN: &str = "@tidewire.invalid";

/// The name of the administrator as it stands in the address; `None` for a user who stands for nobody else.
pub fn administrator(email: &str) -> Option<&str> {
    let local = email.strip_prefix(PREFIX)?.strip_suffix(DOMAIN)?;
    local.rsplit_once('.').map(|(name, _)| name)
}

/// Whether somebody could take it for one of these: an address is the same whatever its capitals.
pub fn looks_let_in(email: &str) -> bool {
    administrator(&email.trim().to_lowercase()).is_some()
}

/// Of all administrators who are written so in an address: one whose name differs in a sign only goes out with the other, and is let
/// in again when the console is asked to. `None`: nobody administers by that name.
pub fn password_hashes(admins: &Admins, written: &str) -> Option<String> {
    let names = admins.administrators().into_iter();
    let meant = names.filter(|name| written_as(name).eq(written.chars()));
    let hashes: Vec<String> = meant.filter_map(|name| admins.password_hash(&name)).collect();
    (!hashes.is_empty()).then(|| hashes.concat())
}

/// As the console writes a name: each unit of its text that has no place in an address is an underscore.
fn written_as(name: &str) -> impl Iterator<Item = char> {
    name.encode_utf16().map(|unit| match u8::try_from(unit) {
        Ok(byte) if byte.is_ascii_alphanumeric() || byte == b'-' => char::from(byte),
        _ => '_',
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_whom_it_stands_for() {
        for (email, name) in [
            ("console-ada.0f9@tidewire.invalid", Some("ada")),
            ("console-ada-2_x.0f9@tidewire.invalid", Some("ada-2_x")),
            ("console-.0f9@tidewire.invalid", Some("")),
            ("console-ada@tidewire.invalid", None),
            ("console-ada.0f9@example.com", None),
            ("ada.0f9@tidewire.invalid", None),
        ] {
            assert_eq!(administrator(email), name, "{email}");
            assert_eq!(looks_let_in(&email.to_uppercase()), name.is_some(), "{email}");
        }
        for (name, written) in [("ada", "ada"), ("Ada.L-2_x", "Ada_L-2_x"), ("\u{e4}d\u{1f980}", "_d__")] {
            assert_eq!(written_as(name).collect::<String>(), written, "{name}");
        }
    }
}
