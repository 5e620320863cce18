//! Administrators of the node who act as a user of a tenant. The console creates such a user for the login, with the
//! address `console-<name>.<random>@tidewire.invalid` (`enter` in `ui/src/platform/tenancy.svelte.ts`). The user is
//! valid while this console user is an administrator of the node and has the same password and second factor.

use web::admins::Admins;

const PREFIX: &str = "console-";
const DOMAIN: &str = "@tidewire.invalid";

/// Returns the name of the administrator as the address contains it; `None` for other users.
pub fn administrator(email: &str) -> Option<&str> {
    let local = email.strip_prefix(PREFIX)?.strip_suffix(DOMAIN)?;
    local.rsplit_once('.').map(|(name, _)| name)
}

/// Whether an address can be mistaken for one of these. Addresses are not case-sensitive.
pub fn resembles_console_address(email: &str) -> bool {
    administrator(&email.trim().to_lowercase()).is_some()
}

/// Returns the credentials of all administrators whose names are written like this in an address. If two names
/// differ only in replaced characters, a password change of one also ends the login of the other, who can log in again
/// through the console. `None`: no administrator has this name.
pub fn credentials_stamps(admins: &Admins, written: &str) -> Option<String> {
    let names = admins.administrators().into_iter();
    let meant = names.filter(|name| address_characters(name).eq(written.chars()));
    let stamps: Vec<String> = meant.filter_map(|name| admins.credentials_stamp(&name)).collect();
    (!stamps.is_empty()).then(|| stamps.concat())
}

/// Converts a name as the console does: each UTF-16 unit that an address cannot contain becomes an underscore.
fn address_characters(name: &str) -> impl Iterator<Item = char> {
    name.encode_utf16().map(|unit| match u8::try_from(unit) {
        Ok(byte) if byte.is_ascii_alphanumeric() || byte == b'-' => char::from(byte),
        _ => '_',
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_contains_the_name_of_the_administrator() {
        for (email, name) in [
            ("console-ada.0f9@tidewire.invalid", Some("ada")),
            ("console-ada-2_x.0f9@tidewire.invalid", Some("ada-2_x")),
            ("console-.0f9@tidewire.invalid", Some("")),
            ("console-ada@tidewire.invalid", None),
            ("console-ada.0f9@example.com", None),
            ("ada.0f9@tidewire.invalid", None),
        ] {
            assert_eq!(administrator(email), name, "{email}");
            assert_eq!(
                resembles_console_address(&email.to_uppercase()),
                name.is_some(),
                "{email}"
            );
        }
        for (name, written) in [("ada", "ada"), ("Ada.L-2_x", "Ada_L-2_x"), ("\u{e4}d\u{1f980}", "_d__")] {
            assert_eq!(address_characters(name).collect::<String>(), written, "{name}");
        }
    }
}
