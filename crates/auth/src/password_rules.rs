//! Rules for new passwords: a minimum length, and no password that is among the first that an attacker tries. Existing
//! passwords and hashes are not checked.

use std::fmt;

pub const PASSWORD_CHARACTERS_MIN: usize = 8;

/// Common passwords of at least [`PASSWORD_CHARACTERS_MIN`] characters, in lower case. Sequences and repetitions
/// such as `12345678` and `aaaaaaaa` are recognised without the list.
const COMMON: &str = "\
    !qaz2wsx 000000000 11111111 11223344 112233445566 123123123 123321123 12341234 1234554321 123456789a 123456abc \
    12345qwert 123654789 123abc123 123qweasd 123qweasdzxc 147258369 159357456 18atcskd2w 1a2b3c4d 1q2w3e4r \
    1q2w3e4r5t 1q2w3e4r5t6y 1qaz2wsx 1qaz2wsx3edc 1qaz@wsx 1qazxsw2 741852963 789456123 987654321a abc12345 \
    abc123456 abcd1234 access14 admin123 admin1234 admin12345 admin123456 admin@123 administrator alexander \
    asdasdasd asdf1234 asdfasdf asdfghjk asdfghjkl azertyuiop baseball basketball bismillah butterfly changeit \
    changeme changeme1 changeme123 charlie1 chocolate computer corvette december default1 default123 dragon123 \
    einstein elephant fishing1 football football1 fuckyou1 garfield guest123 hello123 hellohello hunter123 iloveyou \
    iloveyou1 iloveyou2 internet jennifer jonathan letmein1 letmein123 liverpool lovelove maverick mercedes michael1 \
    michelle midnight mosquitto mustang1 mypassword nopassword p@55w0rd p@ssw0rd p@ssword pa$$w0rd pass1234 \
    pass12345 passw0rd passw0rd1 password password! password0 password01 password1 password1! password12 password123 \
    password1234 password2 password3 password@123 passwordpassword princess princess1 q1w2e3r4 q1w2e3r4t5 qazwsx123 \
    qazwsxedc qazwsxedcrfv qwer1234 qwerasdf qwert123 qwerty12 qwerty123 qwerty1234 qwerty12345 qwerty123456 \
    qwertyui qwertyuiop raspberry rootroot samantha secret123 security september startrek starwars sunshine \
    sunshine1 superman superman1 system32 temppass test1234 test12345 testtest thingsboard tidewire trustno1 \
    user1234 victoria welcome1 welcome123 whatever william1 yankees1 zaq12wsx zaq1zaq1 zxcvbnm1 zxcvbnm123";

/// Rows that are typed in one movement.
const SEQUENCES: [&str; 5] = [
    "01234567890123456789",
    "abcdefghijklmnopqrstuvwxyz",
    "qwertyuiopasdfghjklzxcvbnm",
    "qwertzuiopasdfghjklyxcvbnm",
    "azertyuiopqsdfghjklmwxcvbn",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeakPassword {
    Short,
    Common,
}

impl fmt::Display for WeakPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeakPassword::Short => write!(f, "the password has fewer than {PASSWORD_CHARACTERS_MIN} characters"),
            WeakPassword::Common => f.write_str("the password is one of the most common passwords"),
        }
    }
}

impl std::error::Error for WeakPassword {}

/// Checks a password that a person chooses.
pub fn check_new_password(password: &str) -> Result<(), WeakPassword> {
    if password.chars().count() < PASSWORD_CHARACTERS_MIN {
        return Err(WeakPassword::Short);
    }
    let lower = password.to_lowercase();
    let is_common = COMMON.split(' ').any(|word| word == lower) || is_sequence(&lower) || has_few_characters(&lower);
    match is_common {
        true => Err(WeakPassword::Common),
        false => Ok(()),
    }
}

fn is_sequence(lower: &str) -> bool {
    let backwards: String = lower.chars().rev().collect();
    SEQUENCES
        .iter()
        .any(|row| row.contains(lower) || row.contains(backwards.as_str()))
}

/// At most two different characters.
fn has_few_characters(text: &str) -> bool {
    let mut different = Vec::new();
    for character in text.chars() {
        if !different.contains(&character) {
            different.push(character);
        }
    }
    different.len() <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_common_passwords_are_weak() {
        for short in ["", "123456", "aaaaaa", "qwerty1", "äöüäöüä"] {
            assert_eq!(check_new_password(short), Err(WeakPassword::Short), "{short}");
        }
        let common = [
            "12345678",
            "87654321",
            "1234567890",
            "aaaaaaaa",
            "abababab",
            "abcdefgh",
            "PASSWORD",
            "Passw0rd",
            "qwertyui",
            "QWERTZUIOP",
            "changeme",
            "Admin123",
            "11111112",
        ];
        for common in common {
            assert_eq!(check_new_password(common), Err(WeakPassword::Common), "{common}");
        }
        for good in [
            "lovelace",
            "customer",
            "a password",
            "correct horse battery",
            "x7$kp2!q",
            "пароль для всех",
        ] {
            assert_eq!(check_new_password(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn list_is_sorted_and_in_lower_case() {
        assert!(COMMON.split(' ').is_sorted());
        let is_listed = |word: &str| word.chars().count() >= PASSWORD_CHARACTERS_MIN && word == word.to_lowercase();
        assert!(COMMON.split(' ').all(is_listed));
    }
}
