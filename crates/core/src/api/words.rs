//! Macros: for enums whose variants each have a word, for structs that display as some of their fields,
//! and for structs of which `Debug` shows little.

/// Defines an enum whose variants each have a word, with a function that returns the word and the
/// constant `ALL`. The line `impl Display;` makes it display as its word.
#[macro_export]
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $word:expr,)*
        }
        $(#[$method_meta:meta])*
        $method_vis:vis fn $method:ident;
        $(impl $display:ident;)?
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$variant_meta])* $variant,)*
        }

        impl $name {
            /// Every variant, in order of definition.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            $(#[$method_meta])*
            $method_vis const fn $method(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        $(impl ::std::fmt::$display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.$method())
            }
        })?
    };
}

/// Implements `Display` for a struct: these fields in that format.
#[macro_export]
macro_rules! display {
    ($name:ident, $format:literal, $($field:tt),+) => {
        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, $format, $(self.$field),+)
            }
        }
    };
}

/// Implements `Debug` for a struct so that it shows these fields and no others: the rest is secret, or no
/// value.
#[macro_export]
macro_rules! partial_debug {
    ($name:ident $(, $field:ident)*) => {
        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($name));
                $(shown.field(stringify!($field), &self.$field);)*
                shown.finish_non_exhaustive()
            }
        }
    };
}
