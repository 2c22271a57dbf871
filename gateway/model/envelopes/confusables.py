"""A table of characters that look like the letters of our tags: data for `tag_look_alikes`.

The table is derived from Unicode's `confusables.txt` (UTS #39, version 17.0; © Unicode, Inc., Unicode License v3): for
each letter that our tags use, every character whose prototype is that letter in either case. Latin letters that are
turned, struck through or small capitals are added by their Unicode names, as are squared and circled letters. Letters
that compatibility normalisation (NFKC) or removing accents yields are not listed: `tag_look_alikes` computes them.

Entries are code points in hexadecimal, `first-last` for a range.
"""

from typing import Final

LETTERS: Final = {
    "a": (
        "23a 250-251 391 3b1 410 430 13aa 15c5 1d00 1d44 1d8f 1e9a 2376 237a 2c65 2c6d 2c6f a4ee ab7a 102a0 "
        "16f40 1ccd6 1d6a8 1d6c2 1d6e2 1d6fc 1d71c 1d736 1d756 1d770 1d790 1d7aa 1f150 1f170 1f1e6"
    ),
    "c": (
        "a2 187-188 23b-23c 255 297 3f2 3f9 421 441 4aa-4ab 1004 105a 13df 1c83 1d04 1d9d 20a1 2184 2ca4-2ca5 "
        "a4da a73e-a73f a792-a794 a7c4 abaf 102a2 10302 10415 1043d 1051c 118e9 118f2 1ccd8 1df0f 1df1d 1f152 "
        "1f16e 1f172 1f1e8 1f74c"
    ),
    "d": (
        "d0 f0 110-111 189-18c 1c5 1f2 221 256-257 500-501 13a0 13e7 146f 15de 15ea 1d05 1d6d 1d81 1d91 20ab "
        "a4d2-a4d3 a779-a77a a7c7-a7c8 ab70 abb7 1078b-1078d 1ccd9 1f153 1f173 1f1e9"
    ),
    "e": (
        "18e 190 1dd 246-247 258 25b-25e 29a 395 3b5 3f5 415 435 4bc-4bf 13ac 1d07-1d08 1d32 1d4b-1d4c "
        "1d92-1d94 1d9f 212e 22ff 2c78 2c7b 2d39 a4f0 a7ab ab32-ab34 ab7c 10286 1078e-1078f 118a6 118ae 118c6 "
        "118ce 1ccda 1d6ac 1d6e6 1d720 1d75a 1d794 1f154 1f174 1f1ea"
    ),
    "g": (
        "18d 193 1e4-1e5 260-262 29b 50c-50d 551 581 13c0 13f3 13fb 1d77 1d79 1d83 1da2 a4d6 a77d-a77f "
        "a7a0-a7a1 a7ac a7d0-a7d1 ab36 ab90 10792-10794 1ccdc 1df01-1df02 1f156 1f176 1f1ec"
    ),
    "h": (
        "126-127 265-266 29c 2ae-2af 2b1 397 40b 41d 43d 45b 4a2-4a3 4ba-4bb 4c7-4ca 540 570 13bb 13c2 13f2 "
        "13fa 157c 1d78 1da3 210f 2c67-2c68 2c75-2c76 2c8e-2c8f a4e7 a694-a695 a78d a795 a7aa a7f5-a7f6 a7f8 "
        "ab8b ab92 102cf 10795-10796 1ccdd 1d6ae 1d6e8 1d722 1d75c 1d796 1f157 1f177 1f1ed"
    ),
    "i": (
        "131 13f-142 196-197 19a 1c0 1c8 234 23d 268-26d 29f 2db 37a 399 3b9 406 456 4c0 4cf 552 582 5c0 5d5 "
        "5df 625 627 661 673 6f1 7ca 13a5 13de 14aa 16c1 1d09 1d0c 1d4e 1d7b-1d7c 1d85 1d96 1da4 1da6-1da7 "
        "1da9-1dab 1fbe 2223 2373 2378 23fd 2c60-2c62 2c92-2c93 2cd0-2cd1 2d4f a4e1 a4f2 a646-a647 a748-a749 "
        "a780-a781 a78e a7ad-a7ae ab37-ab39 ab5d-ab5e ab75 abae fd3c-fd3d fe87-fe88 fe8d-fe8e ffe8 1028a "
        "10309 10320 1041b 10443 10526 1079b-1079d 118a3 118b2 118c3 118d2 11dda 11de1 16eaa 16f16 16f28 "
        "1ccde 1cce1 1ccf1 1d22a 1d6a4 1d6b0 1d6ca 1d6ea 1d704 1d724 1d73e 1d75e 1d778 1d798 1d7b2 1d7cf "
        "1d7d9 1d7e3 1d7ed 1d7f7 1df04 1df11 1df13 1df1a 1e8c7 1ee00 1ee80 1f158 1f15b 1f178 1f17b 1f1ee "
        "1f1f1 1fbf1"
    ),
    "m": (
        "b5 19c 26f-271 39c 3bc 3fa-3fb 41c 43c 4cd-4ce 13b7 15f0 16d6 1d0d 1d1f 1d5a 1d6f 1d86 1dac-1dad "
        "20a5 2c6e 2c98-2c99 a4df a7fa ab3a ab87 102b0 10311 11700 118e3 1cce2 1d6b3 1d6ed 1d727 1d761 1d79b "
        "1f15c 1f17c 1f1f2"
    ),
    "n": (
        "14a-14b 19d-19e 1cb 220 235 272-274 376-377 39d 3b7 3c0 418 438 43f 542 548 54c 572 578 57c 1d0e 1d3b 1d70 "
        "1d87 1dae-1db0 2c9a-2c9b a4e0 a790-a791 a7a4-a7a5 ab3b 1018e 10425 1044d 10513 1cce3 1d6b4 1d6c8 "
        "1d6ee 1d702 1d728 1d73c 1d762 1d776 1d79c 1d7b0 1f15d 1f17d 1f1f3"
    ),
    "o": (
        "d8 f8 186 19f 1fe-1ff 254 275 398 39f 3a3 3b8 3bf 3c2-3c3 3d1 3ec-3ed 3f4 41e 43e 472-473 4e8-4e9 "
        "555 585 5e1 647 665 6be 6c1 6d5 6f5 6ff 7c0 966 9e6 a66 ae6 b20 b66 be6 c66 ce6 d20 d66 e50 ed0 1010 "
        "101d 1040 10d7 10ff 12d0 13be 13eb 17e0 1c82 1c97 1cbf 1d0f-1d13 1d16-1d17 1d53-1d55 1d97 1db1 2070 "
        "2296 229d 236c 2c7a 2c90-2c91 2c9e-2c9f 2d31 2d41 2d54 3007 a4f3 a74a-a74d ab3d-ab3f ab74 ab8e abbb "
        "fba6-fbad fcd9 fee9-feec 10292 102ab 10404 1042c 104c2 104ea 10516 107a2 114d0 118a8 118b5 118b7 "
        "118c8 118d5 118d7 118e0 11de0 1cce4 1ccf0 1d21a 1d6af 1d6b6 1d6b9 1d6c9 1d6d0 1d6d4 1d6dd 1d6e9 "
        "1d6f0 1d6f3 1d703 1d70a 1d70e 1d717 1d723 1d72a 1d72d 1d73d 1d744 1d748 1d751 1d75d 1d764 1d767 "
        "1d777 1d77e 1d782 1d78b 1d797 1d79e 1d7a1 1d7b1 1d7b8 1d7bc 1d7c5 1d7ce 1d7d8 1d7e2 1d7ec 1d7f6 "
        "1df1b 1ee24 1ee64 1ee84 1f15e 1f17e 1f1f4 1f714 1fbf0"
    ),
    "p": (
        "de fe 1a4-1a5 1bf 1f7 3a1 3c1 3f1 3f7-3f8 420 440 13e2 146d 1d18 1d29 1d71 1d7d 1d88 2374 2c63 "
        "2ca2-2ca3 2cce-2ccf a4d1 a750-a755 abb2 10295 1cce5 1d6b8 1d6d2 1d6e0 1d6f2 1d70c 1d71a 1d72c 1d746 "
        "1d754 1d766 1d780 1d78e 1d7a0 1d7ba 1d7c8 1f15f 1f17f 1f18a 1f1f5"
    ),
    "r": (
        "1a6 24c-24d 279-281 2b4-2b6 413 42f 433 44f 492-493 13a1 13d2 1587 1d19-1d1a 1d26 1d72-1d73 1d89 "
        "2c64 2c79 2c84-2c85 a4e3 a75a-a75b a782-a783 a7a6-a7a7 ab46-ab49 ab4b-ab4c ab68 ab71 ab81 aba2 104b4 "
        "104dc 107a6-107aa 16f35 1cce7 1d216 1df08 1df15-1df16 1f161 1f181 1f1f7"
    ),
    "s": (
        "1bc-1bd 23f 282 405 455 54f 57f d1f 13d5 13da 1d74 1d8a 1db3 1e9c-1e9d 2c7e a4e2 a731 a784-a785 "
        "a7a8-a7a9 a7c5 a7c9-a7ca aba5 abaa 10296 10420 10448 107ba 118a1 118c1 16f3a 1cce8 1df1e 1f162 1f182 "
        "1f1f8"
    ),
    "t": (
        "166-167 1ab-1ae 236 23e 287-288 3a4 3c4 422 442 4ac-4ad 13a2 1c84-1c85 1d1b 1d75 1db5 2020 20ae 22a4 2361 "
        "27d9 2c66 2ca6-2ca7 a4d4 a786-a787 a7b1 ab72 10297 102b1 10315 107af 118bc 16f0a 1cce9 1d6bb 1d6d5 "
        "1d6f5 1d70f 1d72f 1d749 1d769 1d783 1d7a3 1d7bd 1df09 1df0d 1f163 1f183 1f1f9 1f768"
    ),
    "u": (
        "244 289 28b 3c5 40f 45f 54d 57d 1200 13cc 144c 1d1c-1d1d 1d59 1d7e 1d99 1db8 222a 22c3 a4f4 "
        "a79e-a79f a7b8-a7b9 ab4e ab52 ab5f ab9c 104ce 104f6 118b8 118d8 16f42 1ccea 1d6d6 1d710 1d74a 1d784 "
        "1d7be 1f164 1f184 1f1fa"
    ),
    "v": (
        "1b2 245 28c 3bd 474-475 5d8 667 6f7 13d9 142f 1d20 1db9-1dba 1efc-1efd 2228 22c1 2c71 2c74 2d38 a4e6 "
        "a6df a75e-a75f aba9 10197 1051d 107b0 11706 118a0 118c0 16f08 1cceb 1d20d 1d6ce 1d708 1d742 1d77c "
        "1d7b6 1f165 1f185 1f1fb 1f708"
    ),
    "y": (
        "a5 194 1b3-1b4 24e-24f 263 28e-28f 393 3a5 3b3 3d2 423 443 4ae-4b1 10e7 13a9 13bd 1ca7 1d8c "
        "1efe-1eff 213d 2ca8-2ca9 a4ec ab5a ab79 ab8d 102b2 107a0-107a1 107b2 118a4 118c4 118dc 16f43 1ccee "
        "1d6bc 1d6c4 1d6f6 1d6fe 1d730 1d738 1d76a 1d772 1d7a4 1d7ac 1df06 1f168 1f188 1f1fe"
    ),
}
BRACKETS: Final = (
    "ab 2c2 2f1 1438 1449 169c 16b2 2039 2264 2266 2268 226a 226e 2272 2276 227a 227c 227e 22b0 22b2 22b4 "
    "22d6 22d8 22da 22dc 22de 22e0 22e6 22e8 22ea 22ec 2343 23f4 25c1-25c5 276c 276e 2770 27e8 27ea "
    "2976-2977 2989 2991 2993 2996 29c0 29fc 2a79 2a7b 2a7d 2a7f 2a81 2a83 2a85 2a87 2a89 2a8b 2a8d 2a8f "
    "2a91 2a93 2a95 2a97 2a99 2a9b 2a9d 2a9f 2aa1 2aa3 2aa6 2aa8 2aaf 2ab1 2ab3 2ab5 2ab7 2ab9 2acd 2af7 "
    "2af9 2bc7 2d49 3008 300a fe3d fe3f fe64 ff1c 10980 1d236"
)
UNDERSCORES: Final = "5f 2cd 7fa 203f-2040 2054 2581 23bd fe33-fe34 fe4d-fe4f ff3f"
DASHES: Final = "2d b7 2ba-2bb 58a 5be 1400 1806 2010-2015 2022 2027 2043 2212 22c5 2e17 2e1a 2e40 30fb fe58 fe63 ff0d"
SLASHES: Final = (
    "2f 5c 1735 2041 2044 2215-2216 2571 27cb 27cd 29f5-29f6 29f8-29f9 2cc6-2cc7 3033 31d3-31d4 30ce fe68 ff0f ff3c "
    "1d20f 1d23a-1d23b"
)
IGNORABLE: Final = (
    "ad 34f 600-605 61c 6dd 70f 8e2 115f-1160 17b4-17b5 180b-180f 200b-200f 202a-202e 2060-206f 2800 3164 d800-dfff "
    "fdd0-fdef fe00-fe0f feff ffa0 fff0-fffb fffe-ffff 110bd 110cd 13430-1343f 1bca0-1bca3 1d173-1d17a e0000-e0fff"
)
"""Unicode's Default_Ignorable_Code_Point, other format characters, the Braille blank, surrogates and noncharacters."""
